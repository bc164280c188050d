"""A small evaluation that the tests of the comparison share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .live_folder import Change, Way, made_live, simulated

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated evaluation; not to be changed."""
    return simulated(tmp_path_factory.mktemp("truth") / "simulated")


@pytest.fixture
def live(base: Path, tmp_path: Path) -> Make:
    """Makes a live folder of the shared evaluation: where its client's way adds so much, and otherwise as changed."""

    def make(way: Way = Way(), change: Change | None = None, name: str = "live") -> Path:  # noqa: B008 - it is frozen
        return made_live(shutil.copytree(base, tmp_path / name), way, change)

    return make
