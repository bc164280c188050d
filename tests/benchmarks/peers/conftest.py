"""A small comparison, drawn once."""

from __future__ import annotations

import pytest

from disaggroute.benchmarks.peers.match import Match


@pytest.fixture(scope="session")
def drawn() -> Match:
    """200 requests at 0.8 of the capacity."""
    return Match.make(200, 0.8, 0)
