"""Fixtures of the tests of what a run is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of traces and fits that are not part of the repository; without it the test is skipped."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("DISAGGROUTE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(
            f"no data in {folder}; set DISAGGROUTE_DATA to the folder that holds traces/ and profiles/"
        )
    return folder
