"""When a miss is certain, and that each is paid once, in the step in which it became so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.cluster import PS_PER_S, Cluster, ClusterEvent
from disaggroute.envs.records import FINISHED
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.trace import MAX_TARGET_PS, Trace
from disaggroute.training.metrics import met_targets

from ..differential.cases import Case, random_case
from ..differential.scenarios import assign, engine, requests
from .environments import environment_of, play, vector_environment_of


@dataclass(frozen=True)
class Certainty:
    """The instant from which on a miss is certain: at `time` itself, or as soon as it has passed."""

    time: int
    passed: bool

    def known_at(self, now: int) -> bool:
        return now > self.time if self.passed else now >= self.time


def certainty(record: Any, trace: Trace, request: int) -> Certainty | None:
    """From the definition, for a request that has ended; None if it met its targets."""
    arrival, end = int(record["arrival"]), int(record["end"])
    first, last = int(record["first_token"]), int(record["last_token"])
    deadline = arrival + int(trace.ttft_target[request])
    if 0 <= first <= deadline:
        deadline = first + (int(trace.output[request]) - 1) * int(trace.tpot_target[request])
        if record["status"] == FINISHED and last <= deadline:
            return None
    if record["status"] != FINISHED and end <= deadline:
        return Certainty(end, passed=False)
    return Certainty(deadline, passed=True)


def with_targets(rng: np.random.Generator, trace: Trace, records: npt.NDArray[np.void]) -> Trace:
    """The trace with targets that are met or missed by a hair, or pass just when a request arrives."""
    n = len(trace)
    outputs = trace.output.astype(np.int64)
    gaps = np.maximum(outputs - 1, 1)
    arrivals, near = trace.arrival, rng.integers(-1, 2, (2, n))
    first = np.where(records["first_token"] < 0, records["end"], records["first_token"])
    last = np.where(records["last_token"] < 0, records["end"], records["last_token"])
    meeting = rng.choice(arrivals, (2, n))
    ttft = np.choose(rng.integers(0, 3, n), [first - arrivals, meeting[0] - arrivals, records["end"] - arrivals])
    tpot = np.choose(rng.integers(0, 3, n), [(last - first) // gaps, (meeting[1] - first) // gaps, last - first])
    ttft, tpot = np.maximum(0, ttft + near[0]), np.maximum(0, tpot + near[1])
    easy = rng.random((2, n)) < 0.3
    ttft[easy[0]] = MAX_TARGET_PS
    tpot[easy[1]] = MAX_TARGET_PS
    most = MAX_TARGET_PS // outputs
    return replace(trace, ttft_target=np.minimum(ttft, MAX_TARGET_PS), tpot_target=np.minimum(tpot, most))


def pointed(case: Case, start: int, rng: np.random.Generator) -> Case | None:
    """The case with such targets; None if nothing awaits a decision from `start` on."""
    try:
        first = play(environment_of(case.trace, case.cluster, start=start), case.assignment)
    except ValueError as error:
        assert "no request awaits a decision" in str(error)
        return None
    return replace(case, trace=with_targets(rng, case.trace, first.records))


@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.sampled_from([False] * 4 + [True]),
    st.booleans(),
    st.booleans(),
)
def test_every_miss_is_paid_once_in_the_step_in_which_it_became_certain(
    seed: int, tiny: bool, aggregated: bool, failures: bool, warm: bool
) -> None:
    given_case = random_case(seed, tiny=tiny, aggregated=aggregated, failures=failures)
    rng = np.random.default_rng(seed)
    start = int(rng.choice(given_case.trace.arrival)) + int(rng.integers(0, 2)) if warm else 0
    case = pointed(given_case, start, rng)
    if case is None:
        return
    episode = play(environment_of(case.trace, case.cluster, start=start), case.assignment)

    expected: list[set[int]] = [set() for _ in episode.steps]
    inside = np.flatnonzero(case.trace.arrival >= start)
    for request in inside.tolist():
        when = certainty(episode.records[request], case.trace, request)
        if when is not None:
            expected[episode.step_of(when.known_at)].add(request)
    assert [list(ids) for ids in episode.missed] == [sorted(ids) for ids in expected]
    assert episode.rewards == [-len(ids) for ids in episode.missed]

    misses = int((~met_targets(episode.records, case.trace))[inside].sum())
    assert sum(episode.rewards) == -misses
    outcome = episode.steps[-1].info["outcome"]
    assert (outcome["requests"], outcome["missed"]) == (len(inside), misses)
    if len(inside):
        assert outcome["goodput"] == (len(inside) - misses) / len(inside)
    else:  # the agent only routed again what was lost of the warm start
        assert math.isnan(outcome["goodput"])


@given(st.integers(0, 2**32 - 1), st.sampled_from([False] * 4 + [True]), st.booleans())
def test_an_episode_that_is_routed_by_an_assignment_is_the_references_run(
    seed: int, aggregated: bool, failures: bool
) -> None:
    case = random_case(seed, aggregated=aggregated, failures=failures)
    run = run_reference(case.trace, case.cluster, assignment=case.assignment, predicted=case.predicted)
    if not len(run.decisions):
        return
    episode = play(environment_of(case.trace, case.cluster), case.assignment)
    columns = [name for name in run.records.dtype.names or () if name != "predicted"]
    assert all((episode.records[name] == run.records[name]).all() for name in columns)


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([False] * 4 + [True]), st.booleans(), st.booleans())
def test_many_environments_tell_what_one_tells_though_they_keep_no_records(
    seed: int, tiny: bool, aggregated: bool, failures: bool, warm: bool
) -> None:
    given_case = random_case(seed, tiny=tiny, aggregated=aggregated, failures=failures)
    rng = np.random.default_rng(seed)
    start = int(rng.choice(given_case.trace.arrival)) if warm else 0
    case = pointed(given_case, start, rng)
    if case is None:
        return
    episode = play(environment_of(case.trace, case.cluster, start=start), case.assignment)
    many = vector_environment_of(case.trace, case.cluster, start=start)
    many.reset(seed=[0, 0])  # which router gets a request may depend on it
    for step in episode.steps:
        actions = np.array([step.action] * 2)
        observations, rewards, ended, _, infos = many.step(actions)
        for i in range(2):
            assert all((observations[name][i] == column).all() for name, column in step.observation.items())
            assert (rewards[i], ended[i]) == (step.reward, step.terminated)
            assert all(infos[name][i] == step.info[name] for name in ("dt", "now", "request", "missed"))


# One prefill and one decode instance: a prompt of 10 tokens that arrives at 0 is prefilled at 30, transferred at 44,
# and its tokens come at 54, 64, 74, …
PAIR = Cluster(prefill=(engine(),), decode=(engine(),))
PAIR_ROUTE = assign(*[(0, 0)] * 4)


def one_and(*arrivals: int, output: int = 3, ttft: int = 1000, tpot: int = 1000) -> Trace:
    """A request with targets, at 0, and others that arrive to be decided and have all the time."""
    trace = requests((0, 10, output), *((arrival, 1, 1) for arrival in arrivals))
    trace.ttft_target[0], trace.tpot_target[0] = ttft, tpot
    return trace


def missed_by_step(trace: Trace, cluster: Cluster = PAIR, start: int = 0) -> list[tuple[int, ...]]:
    return play(environment_of(trace, cluster, start=start), PAIR_ROUTE).missed


def test_a_first_token_at_its_deadline_is_in_time() -> None:
    assert missed_by_step(one_and(50, 54, 55, ttft=54)) == [(), (), (), ()]


def test_a_ttft_miss_is_not_certain_at_the_deadline_itself_but_1_ps_later() -> None:
    assert missed_by_step(one_and(50, 53, ttft=53)) == [(), (), (0,)]
    assert missed_by_step(one_and(50, 54, ttft=53)) == [(), (0,), ()]


def test_a_last_token_at_its_deadline_is_in_time() -> None:
    assert missed_by_step(one_and(74, 75, tpot=10)) == [(), (), ()]


def test_a_tpot_miss_is_not_certain_at_the_deadline_itself_but_1_ps_later() -> None:
    assert missed_by_step(one_and(60, 72, tpot=9)) == [(), (), (0,)]
    assert missed_by_step(one_and(60, 73, tpot=9)) == [(), (0,), ()]


def test_a_tpot_miss_is_paid_before_a_later_ttft_deadline_has_passed() -> None:
    assert missed_by_step(one_and(60, 73, 500, output=3, ttft=900, tpot=9)) == [(), (0,), (), ()]


def test_a_tpot_target_of_0_is_missed_as_soon_as_the_first_token_is_not_the_last() -> None:
    assert missed_by_step(one_and(53, 54, 55, tpot=0)) == [(), (), (0,), ()]


def test_one_token_meets_any_tpot_target() -> None:
    assert missed_by_step(one_and(53, 55, output=1, tpot=0)) == [(), (), ()]


def test_requests_that_arrive_at_one_instant_are_steps_that_take_no_time() -> None:
    episode = play(environment_of(one_and(0, 0, ttft=5), PAIR), PAIR_ROUTE)
    assert [step.info["dt"] for step in episode.steps] == [0, 0, episode.times[-1] / PS_PER_S]
    assert episode.missed == [(), (), (0,)]


def test_a_killed_request_is_missed_in_the_step_that_the_kill_lies_in() -> None:
    killed = replace(PAIR, events=(ClusterEvent(60, 1, "kill"), ClusterEvent(60, 1, "return")))
    assert missed_by_step(one_and(60, 61, output=9), killed) == [(0,), (), ()]


def test_a_kill_does_not_pay_a_second_time_for_what_was_missed_before() -> None:
    killed = replace(PAIR, events=(ClusterEvent(60, 1, "kill"), ClusterEvent(60, 1, "return")))
    assert missed_by_step(one_and(59, 61, output=9, ttft=53), killed) == [(0,), (), ()]


def test_requests_of_the_warm_start_are_never_paid() -> None:
    assert missed_by_step(one_and(50, 500, ttft=5), start=10) == [(), ()]


def test_what_is_rejected_between_two_decisions_is_missed_in_the_step_between_them() -> None:
    draining = replace(PAIR, events=(ClusterEvent(40, 1, "drain"), ClusterEvent(60, 1, "return")))
    assert missed_by_step(one_and(50, 70), draining) == [(1,), ()]


def test_what_is_rejected_before_the_first_decision_is_missed_in_the_first_step() -> None:
    draining = replace(PAIR, events=(ClusterEvent(0, 1, "drain"), ClusterEvent(60, 1, "return")))
    env = environment_of(one_and(50, 70, 80), draining)
    _, info = env.reset()
    assert info["missed"] == ()
    assert missed_by_step(one_and(50, 70, 80), draining) == [(0, 1), ()]


def test_the_episode_ends_with_its_last_request_whatever_the_failure_schedule_still_holds() -> None:
    late = replace(PAIR, events=(ClusterEvent(10**9, 0, "kill"),))
    episode = play(environment_of(one_and(50), late), PAIR_ROUTE)
    undisturbed = play(environment_of(one_and(50), PAIR), PAIR_ROUTE)
    assert [step.info["dt"] for step in episode.steps] == [step.info["dt"] for step in undisturbed.steps]


@pytest.mark.parametrize("on_kill", ["fail", "reroute"])
def test_a_lost_request_is_missed_once_whether_it_fails_or_is_routed_again(on_kill: Any) -> None:
    # The kill at 20 finds the request in prefill; with `reroute` it is routed again when the next one arrives.
    killed = replace(PAIR, on_kill=on_kill, events=(ClusterEvent(20, 0, "kill"), ClusterEvent(20, 0, "return")))
    episode = play(environment_of(one_and(50, ttft=60), killed), PAIR_ROUTE)
    again = on_kill == "reroute"
    assert len(episode.steps) == 2 + again
    assert episode.missed == ([(), (), (0,)] if again else [(0,), ()])




def test_a_token_that_a_kill_prevented_was_never_in_time() -> None:
    # At 46 the core knows that the first token is to come at 54; the kill at 50 prevents it, and there is none by 55.
    events = (ClusterEvent(50, 1, "kill"), ClusterEvent(50, 1, "return"))
    killed = replace(PAIR, on_kill="reroute", events=events)
    assert missed_by_step(one_and(46, 57, 70, ttft=55, tpot=5), killed) == [(), (), (0,), (), ()]
