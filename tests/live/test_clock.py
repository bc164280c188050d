"""The router's clock."""

from __future__ import annotations

import pytest

from disaggroute.live import clock as clock_module
from disaggroute.live.clock import Clock


@pytest.mark.parametrize(("scale", "wall"), [(0.1, 5.0), (1.0, 5.0), (10.0, 50.0)])
def test_engines_that_are_slower_than_life_are_given_more_time(scale: float, wall: float) -> None:
    assert Clock(scale).patience(5.0) == wall


@pytest.mark.parametrize("scale", [0.25, 1.0, 10.0])
def test_the_clock_counts_the_time_of_the_engines(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    wall = [5_000]
    monkeypatch.setattr(clock_module.time, "monotonic_ns", lambda: wall[0])
    clock = Clock(scale)
    assert (clock.now(), clock.started_ns) == (0, 5_000)
    wall[0] += 3_000_000_000
    assert clock.now() == 3_000_000_000_000 / scale
    assert clock.seconds() == 3 / scale
