"""What becomes of an agent's requests: misses by the clock, outcomes, records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.envs.trace import Trace
from disaggroute.live.play.fates import Fates
from disaggroute.live.request import Request
from disaggroute.live.story import Story

ORIGIN = 7_000
TTFT, TPOT = 100, 10


def trace_of(arrivals: list[int], outputs: list[int]) -> Trace:
    n = len(arrivals)
    return Trace(
        arrival=np.array(arrivals),
        prompt=np.full(n, 5),
        output=np.array(outputs),
        slo=np.zeros(n, np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.full(n, TTFT),
        tpot_target=np.full(n, TPOT),
    )


def story_at(arrival: int) -> Story:
    return Story(Request("a", "/v1/completions", {}, True, False, 0, None, 5, 4, ORIGIN + arrival))


def one(output: int = 4, start: int = 0) -> tuple[Fates, Story]:
    """A request that arrives at 0."""
    fates, story = Fates(trace_of([0], [output]), ORIGIN, start), story_at(0)
    fates.arrived(0, story)
    fates.begin(ORIGIN)
    return fates, story


def finish(fates: Fates, story: Story, first: int, last: int, generated: int = 4, k: int = 0) -> None:
    story.first_token, story.last_token, story.end = ORIGIN + first, ORIGIN + last, ORIGIN + last
    story.status, story.generated = "finished", generated
    fates.has_ended(k)


def test_a_miss_is_certain_when_the_ttft_target_has_passed_without_a_token() -> None:
    fates, _ = one()
    assert fates.account(ORIGIN + TTFT).missed.tolist() == []
    assert fates.account(ORIGIN + TTFT + 1).missed.tolist() == [0]
    assert fates.account(ORIGIN + TTFT + 2).missed.tolist() == [], "it is told once"


def test_a_miss_is_certain_when_the_tokens_after_the_first_take_too_long() -> None:
    fates, story = one()
    story.first_token = ORIGIN + 50
    assert fates.account(ORIGIN + 50 + 3 * TPOT).missed.tolist() == []
    assert fates.account(ORIGIN + 51 + 3 * TPOT).missed.tolist() == [0]


def test_a_first_token_that_came_late_is_a_miss_whenever_one_looks() -> None:
    fates, story = one()
    story.first_token = ORIGIN + TTFT + 1
    assert fates.account(ORIGIN + TTFT + 2).missed.tolist() == [0]


def test_a_single_token_has_no_tpot_target() -> None:
    fates, story = one(output=1)
    story.first_token = ORIGIN + 50
    assert fates.account(ORIGIN + 10_000).missed.tolist() == []


@pytest.mark.parametrize(("first", "last", "met"), [(100, 130, 1), (101, 110, 0), (50, 80, 1), (50, 81, 0)])
def test_a_request_that_ended_is_judged_by_the_whole_of_it(first: int, last: int, met: int) -> None:
    fates, story = one()
    finish(fates, story, first, last)
    outcome = fates.account(ORIGIN + 10_000)
    assert (outcome.met, outcome.missed.tolist(), outcome.ended.tolist()) == (met, [0] * (1 - met), [0])
    assert fates.totals() == {"requests": 1, "missed": 1 - met, "goodput": met}


@pytest.mark.parametrize("generated", [3, 5])
def test_another_number_of_tokens_than_was_asked_for_is_a_miss(generated: int) -> None:
    fates, story = one()
    finish(fates, story, 10, 20, generated)
    assert fates.account(ORIGIN + 30).missed.tolist() == [0]
    assert fates.records["status"][0] == FAILED


def test_a_request_that_was_never_sent_is_rejected_and_one_of_the_warm_start_pays_nothing() -> None:
    fates = Fates(trace_of([0, 50], [4, 4]), ORIGIN, 50)
    early, late = story_at(0), story_at(50)
    for k, story in enumerate((early, late)):
        fates.arrived(k, story)
        story.status, story.end = "rejected", ORIGIN + 60
        fates.has_ended(k)
    fates.begin(ORIGIN + 55)
    outcome = fates.account(ORIGIN + 100)
    assert (outcome.missed.tolist(), outcome.ended.tolist(), outcome.met) == ([1], [1], 0)
    assert fates.records["status"].tolist() == [REJECTED, REJECTED]


def test_what_came_before_the_first_decision_is_told_with_the_first_step() -> None:
    fates, story = one()
    story.status, story.end = "rejected", ORIGIN + 1
    fates.has_ended(0)
    assert fates.begin(ORIGIN + 40) == 40 / PS_PER_S
    outcome = fates.account(ORIGIN + 60)
    assert outcome.ended.tolist() == [0] and outcome.dt == 20 / PS_PER_S


def test_a_record_has_times_of_the_trace_and_nothing_that_nobody_saw() -> None:
    fates, story = one()
    story.prefill_start, story.prefill_end, story.attempts = ORIGIN + 3, ORIGIN + 9, 2
    finish(fates, story, 20, 40)
    row = fates.records[0]
    names = ("arrival", "prefill_start", "prefill_end", "first_token", "last_token", "end", "reroutes", "status")
    assert [row[name] for name in names] == [0, 3, 9, 20, 40, 40, 1, FINISHED]
    assert [row[name] for name in ("reserve", "transfer_start", "transfer_end")] == [-1, -1, -1]


LIVES = st.lists(
    st.fixed_dictionaries(
        {
            "arrival": st.integers(0, 200),
            "output": st.integers(1, 5),
            "wait": st.integers(0, 150),
            "span": st.integers(0, 60),
            "status": st.sampled_from(["finished", "finished", "finished", "failed", "rejected"]),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(LIVES, st.lists(st.integers(0, 500), max_size=12), st.integers(0, 100))
def test_the_steps_add_up_to_the_same_whenever_one_looks(
    lives: list[dict[str, Any]], looks: list[int], start: int
) -> None:
    lives.sort(key=lambda life: life["arrival"])
    trace = trace_of([life["arrival"] for life in lives], [life["output"] for life in lives])
    fates = Fates(trace, ORIGIN, start)
    stories = [story_at(life["arrival"]) for life in lives]
    mine = [k for k, life in enumerate(lives) if life["arrival"] >= start]
    told: dict[str, list[int]] = {"missed": [], "ended": []}
    met, waited, dt = 0, 0.0, fates.begin(ORIGIN + start)
    for now in [*sorted(look for look in looks if look >= start), 1_000]:
        for k, (life, story) in enumerate(zip(lives, stories, strict=True)):
            at = life["arrival"]
            first, end = at + life["wait"], at + life["wait"] + life["span"]
            if at <= now and story.attempts == 0:
                story.attempts = 1
                fates.arrived(k, story)
            if first <= now and life["status"] == "finished":
                story.first_token = story.last_token = ORIGIN + first
            if end <= now and story.end < 0:
                story.status, story.end = life["status"], ORIGIN + end
                story.last_token, story.generated = ORIGIN + end, life["output"]
                fates.has_ended(k)
        outcome = fates.account(ORIGIN + now)
        told["missed"] += outcome.missed.tolist()
        told["ended"] += outcome.ended.tolist()
        met, waited, dt = met + outcome.met, waited + outcome.waited, dt + outcome.dt

    def in_time(life: dict[str, Any]) -> bool:
        slow = life["output"] > 1 and life["span"] > (life["output"] - 1) * TPOT
        return life["status"] == "finished" and life["wait"] <= TTFT and not slow

    missed = [k for k in mine if not in_time(lives[k])]
    assert sorted(told["missed"]) == missed and sorted(told["ended"]) == mine
    assert met == len(mine) - len(missed)
    assert waited * PS_PER_S == pytest.approx(sum(lives[k]["wait"] + lives[k]["span"] for k in mine))
    assert dt * PS_PER_S == pytest.approx(1_000 - start)
