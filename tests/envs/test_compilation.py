"""What is said before something is compiled for a while: once, and only where it has to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.envs import compilation
from disaggroute.envs.compilation import announce


class Compiled:
    """Looks like a compiled function that has not been called."""

    __module__ = "disaggroute.envs.simulator.stepping"
    __name__ = "step_all"
    signatures: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_what_is_neither_in_memory_nor_in_the_cache_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    announce("the step", Compiled())
    said = capsys.readouterr()
    assert said.err == "disaggroute: compiling the step, once for this version (less than a minute)\n"
    assert said.out == ""


def test_what_is_in_the_cache_or_in_memory_is_not(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Compiled()
    called.signatures = ("int64(int64)",)
    announce("the step", called)
    (cache / "simulator_1").mkdir()
    (cache / "simulator_1" / "stepping.step_all-101.py311.nbi").touch()
    announce("the step", Compiled())
    assert capsys.readouterr().err == ""
