"""Engine time is wall time by a scale, and can stand still."""

from __future__ import annotations

import asyncio

import pytest

from disaggroute.live.emulator import clock as clocks
from disaggroute.live.emulator.clock import Alarm, EngineClock


class Wall:
    """A clock that is set by hand, ns."""

    def __init__(self) -> None:
        self.time = 5_000

    def __call__(self) -> int:
        return self.time


@pytest.mark.parametrize(("scale", "engine_ps"), [(1.0, 2_000_000), (10.0, 200_000), (0.5, 4_000_000)])
def test_a_scale_makes_engine_time_slower_or_faster(scale: float, engine_ps: int) -> None:
    wall = Wall()
    clock = EngineClock(scale, wall)
    wall.time += 2_000
    assert clock.now() == engine_ps
    assert clock.seconds_until(engine_ps * 2) == pytest.approx(2e-6)
    assert clock.seconds_until(0) == 0
    assert clock.wall_seconds(engine_ps) == pytest.approx(2e-6)


def test_time_that_was_stopped_goes_on_where_it_stood() -> None:
    wall = Wall()
    clock = EngineClock(1.0, wall)
    wall.time += 10
    clock.stop()
    wall.time += 1_000
    clock.stop()
    assert clock.stopped and clock.now() == 10_000
    clock.go()
    wall.time += 5
    assert not clock.stopped and clock.now() == 15_000
    clock.restart()
    assert clock.now() == 0


@pytest.mark.parametrize("descriptors", [True, False])
def test_an_alarm_rings_once_at_the_last_time_that_was_set(descriptors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not descriptors:
        monkeypatch.setattr(clocks._TimerDescriptor, "open", lambda: None)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        rang: list[float] = []
        alarm = Alarm(lambda: rang.append(loop.time()))
        start = loop.time()
        alarm.set(1000)
        alarm.set(0.02)
        while not rang:
            await asyncio.sleep(0.005)
        assert rang[0] - start >= 0.02
        alarm.set(0.02)
        alarm.unset()
        await asyncio.sleep(0.05)
        assert len(rang) == 1
        alarm.set(0.01)
        alarm.close()
        await asyncio.sleep(0.03)
        assert len(rang) == 1

    asyncio.run(work())
