"""Requests are sent at their time, however coarse the timers of the machine are."""

from __future__ import annotations

import pytest

from disaggroute.live.drive.pacing import NEAR_NS, wait_until

from ..waiting import run

MS = 1_000_000


class Machine:
    """A clock that sleeping moves on, by more than was asked for, as timers do."""

    def __init__(self, late_ns: int, turn_ns: int) -> None:
        self.time, self.late_ns, self.turn_ns = 0, late_ns, turn_ns
        self.slept: list[float] = []

    def now(self) -> int:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += round(seconds * 1e9) + self.late_ns if seconds else self.turn_ns


@pytest.mark.parametrize("late_ns", [0, MS // 2, MS, NEAR_NS - 1])
def test_a_timer_that_wakes_late_does_not_make_a_request_late(late_ns: int) -> None:
    machine = Machine(late_ns, turn_ns=10_000)
    run(wait_until(500 * MS, machine.now, machine.sleep))
    assert 500 * MS <= machine.time < 500 * MS + 10_000


def test_a_machine_that_is_away_makes_it_late_by_that_alone() -> None:
    machine = Machine(late_ns=40 * MS, turn_ns=10_000)
    run(wait_until(500 * MS, machine.now, machine.sleep))
    assert machine.time == 500 * MS - NEAR_NS + 40 * MS


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    machine = Machine(0, 1)
    machine.time = 7
    run(wait_until(7, machine.now, machine.sleep))
    assert machine.slept == [0]  # Gives way once: requests that were sent late go on, and so does a Ctrl-C.
