"""The breaker of an engine, by itself and against a model that keeps the whole story."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.breaker import ORDINARY, Breaker


def opened(pause_s: float = 5.0) -> Breaker:
    """A breaker that three faults have opened at 0."""
    breaker = Breaker(3, pause_s)
    assert [breaker.failed(0.0, breaker.sent(0.0)) for _ in range(3)] == [False, False, True]
    return breaker


def test_faults_in_a_row_open_it_and_a_success_between_them_starts_anew() -> None:
    breaker = Breaker(3, 5.0)
    for _ in range(2):
        assert not breaker.failed(0.0, ORDINARY)
    breaker.succeeded(ORDINARY)
    for _ in range(2):
        assert not breaker.failed(1.0, ORDINARY)
    assert breaker.state == "closed" and breaker.may_send(1.0) and not breaker.tripped
    assert breaker.failed(1.0, ORDINARY)
    assert breaker.state == "open" and breaker.tripped and breaker.opened == 1 and not breaker.may_send(5.9)


def test_after_the_pause_exactly_one_request_tries() -> None:
    breaker = opened()
    assert not breaker.may_send(4.99) and breaker.may_send(5.0)
    trial = breaker.sent(5.0)
    assert trial != ORDINARY and breaker.state == "trying"
    assert not breaker.may_send(5.0) and not breaker.may_send(1_000.0)
    assert breaker.sent(6.0) == ORDINARY  # sent in spite of that, as a leg that was assigned before
    breaker.succeeded(trial)
    assert breaker.state == "closed" and breaker.faults == 0 and breaker.may_send(6.0)


def test_the_pause_doubles_with_each_trial_that_fails_up_to_eight_times() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(6):
        pause = next(step for step in range(1, 1_000) if breaker.may_send(now + step))
        pauses.append(pause)
        now += pause
        assert breaker.failed(now, breaker.sent(now))
    assert pauses == [5, 10, 20, 40, 40, 40] and breaker.opened == 7
    breaker.succeeded(None)
    for _ in range(3):
        breaker.failed(now, ORDINARY)
    assert not breaker.may_send(now + 4.99) and breaker.may_send(now + 5.0)


def test_late_failures_of_requests_from_before_the_opening_change_nothing() -> None:
    breaker = opened()
    assert not breaker.failed(4.0, ORDINARY) and breaker.may_send(5.0)
    assert not breaker.failed(5.5, ORDINARY) and breaker.may_send(5.5)
    trial = breaker.sent(6.0)
    assert not breaker.failed(6.5, ORDINARY) and breaker.state == "trying" and breaker.opened == 1
    breaker.succeeded(trial)
    assert breaker.state == "closed"


def test_a_late_success_of_a_request_from_before_the_opening_does_not_close_it() -> None:
    breaker = opened()
    breaker.succeeded(ORDINARY)
    assert breaker.state == "open" and not breaker.may_send(4.0)


def test_a_request_sent_during_the_pause_is_not_the_one_that_tries() -> None:
    breaker = opened()
    assert breaker.sent(2.0) == ORDINARY and breaker.state == "open" and breaker.may_send(5.0)


def test_when_the_one_that_tries_says_nothing_another_one_may() -> None:
    breaker = opened()
    trial = breaker.sent(5.0)
    breaker.gave_up(ORDINARY)  # a client of another request went away
    assert not breaker.may_send(5.0)
    breaker.gave_up(trial)
    assert breaker.state == "open" and breaker.may_send(5.0) and breaker.sent(5.0) != trial


def test_a_trial_of_an_earlier_opening_is_not_that_of_a_later_one() -> None:
    breaker = opened()
    first = breaker.sent(5.0)
    breaker.succeeded()  # the engine has returned as another process
    for _ in range(3):
        breaker.failed(6.0, ORDINARY)
    second = breaker.sent(20.0)
    assert second not in (first, ORDINARY)
    assert not breaker.failed(20.0, first) and breaker.state == "trying"
    breaker.gave_up(first)
    breaker.succeeded(first)
    assert breaker.state == "trying"
    assert breaker.failed(20.0, second)


def test_without_tickets_what_is_told_is_taken_to_be_of_the_one_that_tries() -> None:
    breaker = opened()
    breaker.sent(5.0)
    assert breaker.failed(5.0) and breaker.opened == 2
    breaker.sent(15.0)
    breaker.gave_up()
    assert breaker.may_send(15.0)
    breaker.sent(15.0)
    breaker.succeeded()
    assert breaker.state == "closed"


@dataclass
class Model:
    """The rules, from the whole story: what was told while it was closed, and the trial if there is one."""

    faults: int
    pause_s: float
    row: int = 0
    openings: list[float] = field(default_factory=list)
    """Of the present trouble; empty: closed."""
    trial: object | None = None
    total: int = 0

    def due(self) -> float:
        return self.openings[-1] + self.pause_s * min(2 ** (len(self.openings) - 1), 8)

    def may_send(self, now: float) -> bool:
        return not self.openings or (self.trial is None and now >= self.due())

    def send(self, now: float, request: object) -> None:
        if self.openings and self.may_send(now):
            self.trial = request

    def end(self, now: float, request: object, how: str) -> None:
        tried = request is self.trial
        if how == "failed":
            self.row += 1
        if self.openings and not tried:
            return
        self.trial = None
        if how == "succeeded":
            self.row, self.openings = 0, []
        elif how == "failed" and (tried or self.row >= self.faults):
            self.openings.append(now)
            self.total += 1


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "failed", "failed", "failed", "succeeded", "gave_up"]),
        st.integers(0, 5),  # which request in flight
        st.sampled_from([0, 0, 1, 2, 5, 40]),  # s since the last event
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 3))
def test_any_story_goes_as_in_the_model(events: list[tuple[str, int, int]], faults: int) -> None:
    breaker, model = Breaker(faults, 2.0), Model(faults, 2.0)
    in_flight: list[tuple[Any, int]] = []
    now = 0.0
    for what, which, passed in events:
        now += passed
        assert breaker.may_send(now) == model.may_send(now)
        if what == "send":  # also when it may not: legs are assigned before they are sent
            request = object()
            in_flight.append((request, breaker.sent(now)))
            model.send(now, request)
        elif in_flight:
            request, ticket = in_flight.pop(which % len(in_flight))
            before = model.total
            model.end(now, request, what)
            if what == "failed":
                assert breaker.failed(now, ticket) == (model.total > before)
            else:
                getattr(breaker, what)(ticket)
        assert breaker.may_send(now) == model.may_send(now)
        assert breaker.tripped == bool(model.openings) and breaker.opened == model.total
        assert breaker.state == ("trying" if model.trial else "open" if model.openings else "closed")
        assert sum(ticket != ORDINARY and request is model.trial for request, ticket in in_flight) <= 1
