"""What a live router and emulated engines compile at their first start, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disaggroute.envs import compilation as announcement
from disaggroute.envs.profiles import load
from disaggroute.envs.router_constants import from_cluster
from disaggroute.envs.simulator import engine_entries, router_entries
from disaggroute.envs.simulator.compile import cache_folder
from disaggroute.envs.simulator.warm import tiny_cluster
from disaggroute.live import compilation, router
from disaggroute.live.compilation import compile_engine, compile_router
from disaggroute.live.router import LiveRouter


class Cold:
    """A function that has not been called."""

    def __init__(self, like: Callable[..., object]) -> None:
        self.__module__, self.__name__, self.signatures = like.__module__, like.__name__, ()


@pytest.mark.parametrize(
    ("compile_", "entries", "name", "what"),
    [
        (compile_router, router_entries, "take_over", "the router"),
        (compile_engine, engine_entries, "note_usage", "the emulated engine"),
    ],
)
def test_the_first_start_of_a_version_says_that_it_compiles(
    compile_: Callable[[], None],
    entries: object,
    name: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compile_()
    capsys.readouterr()
    compile_()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(compilation, "warm_up_router", lambda: None)
    monkeypatch.setattr(compilation, "warm_up_engine", lambda: None)
    monkeypatch.setattr(entries, name, Cold(getattr(entries, name)))
    compile_()  # Another process finds it in the cache.
    assert capsys.readouterr().err == "" and cache_folder().is_dir()
    monkeypatch.setattr(announcement, "cache_folder", lambda: tmp_path)
    compile_()
    assert capsys.readouterr().err == f"disaggroute: compiling {what}, once for this version (less than a minute)\n"


def test_a_router_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    monkeypatch.setattr(router, "compile_router", lambda: said.append(True))
    cluster = tiny_cluster()
    LiveRouter(cluster, from_cluster(cluster), load("a40-qwen2.5-3b").slo_targets, "round-robin")
    assert said == [True]
