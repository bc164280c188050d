"""Where the compiled code is kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from disaggroute.envs.simulator.compile import cache_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, where the usual places cannot be written."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISAGGROUTE_CACHE", str(tmp_path / "file"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_the_folder_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGGROUTE_CACHE", str(tmp_path))
    assert cache_folder().parent == tmp_path / "disaggroute" and cache_folder().is_dir()


def test_without_a_place_to_write_it_is_a_temporary_one_of_the_user_alone(temporary: Path) -> None:
    assert cache_folder().parent == temporary / f"disaggroute-{os.getuid()}"
    assert cache_folder().parent.stat().st_mode & 0o077 == 0


def test_a_user_without_a_home_gets_a_temporary_one(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DISAGGROUTE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", fail)
    assert cache_folder().parent == temporary / f"disaggroute-{os.getuid()}"


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_temporary_one_that_others_may_have_filled_is_refused(temporary: Path, tmp_path: Path, kind: str) -> None:
    folder = temporary / f"disaggroute-{os.getuid()}"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="is open to other users; name a folder of your own in DISAGGROUTE_CACHE"):
        cache_folder()
