"""Rewards: what each pays, step by step, and how they are found by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import rewards
from disaggroute.envs.cluster import PS_PER_S, Cluster, ClusterEvent
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.rewards import CountedReward, Outcome, Reward
from disaggroute.training.metrics import met_targets

from ..differential.cases import random_case
from ..differential.scenarios import assign, engine, requests
from .environments import ARGUMENTS, Episode, environment_of, play, rollout
from .test_missed_requests import pointed

BUILT_IN = ("slo-miss", "goodput", "latency")
HERE = __name__


class Noted(Reward):
    """Pays 0.5 a step and keeps what it is told."""

    name = "noted"
    outcomes: list[Outcome] = []  # noqa: RUF012 - emptied by each test

    def of(self, outcome: Outcome) -> float:
        self.outcomes.append(outcome)
        return 0.5


@pytest.fixture
def clean() -> Iterator[None]:
    """Takes back what a test registers."""
    before = dict(rewards._classes)
    Noted.outcomes.clear()
    yield
    rewards._classes.clear()
    rewards._classes.update(before)
    rewards._entry_points.cache_clear()


def in_cluster(episode: Episode, request: int, step: int) -> int:
    """Time that a request spent in the cluster during a step, ps."""
    record = episode.records[request]
    start, end = episode.times[step : step + 2]
    return max(0, min(int(record["end"]), end) - max(int(record["arrival"]), start))


@given(st.integers(0, 2**32 - 1), st.sampled_from([False] * 4 + [True]), st.booleans(), st.booleans())
def test_a_reward_is_told_what_happened_in_each_step(seed: int, aggregated: bool, failures: bool, warm: bool) -> None:
    case = random_case(seed, aggregated=aggregated, failures=failures)
    rng = np.random.default_rng(seed)
    start = int(rng.choice(case.trace.arrival)) if warm else 0
    case = pointed(case, start, rng) or case
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rewards._classes, "noted", Noted)
        Noted.outcomes.clear()
        env = environment_of(case.trace, case.cluster, start=start, reward="noted")
        try:
            episode = play(env, case.assignment)
        except ValueError:  # nothing awaits a decision
            return
    assert episode.rewards == [0.5] * len(episode.steps) and len(Noted.outcomes) == len(episode.steps)
    met = met_targets(episode.records, case.trace)
    inside = np.flatnonzero(case.trace.arrival >= start).tolist()
    ends: list[set[int]] = [set() for _ in episode.steps]
    for request in inside:
        ends[episode.step_of(lambda now, end=episode.records["end"][request]: now >= end)].add(request)
    for k, outcome in enumerate(Noted.outcomes):
        assert outcome.dt == episode.steps[k].info["dt"]
        assert tuple(outcome.missed) == episode.missed[k]
        assert set(outcome.ended.tolist()) == ends[k] and len(outcome.ended) == len(ends[k])
        assert outcome.met == met[list(ends[k])].sum()
        assert outcome.waited == float(sum(in_cluster(episode, request, k) for request in inside)) / PS_PER_S
        assert outcome.trace is case.trace
        assert (outcome.records[outcome.ended] == episode.records[outcome.ended]).all()


@pytest.mark.parametrize("setting", ["as it comes", "aggregated, padded, failing", "kills reroute"])
def test_the_compiled_step_pays_what_a_reward_makes_of_what_happened(setting: str, clean: None) -> None:
    rewards.register(Noted)
    named = {name: DisaggRouteEnv(**ARGUMENTS[setting] | {"reward": name}) for name in ("noted", *BUILT_IN)}
    for env in named.values():
        env.reset(seed=3)
    for step in rollout(named.pop("noted")):
        paid = {name: env.step(step.action)[1] for name, env in named.items()}
        assert paid == {name: rewards.make(name).of(Noted.outcomes[-1]) for name in BUILT_IN}
    assert any(outcome.met for outcome in Noted.outcomes) and any(len(o.missed) for o in Noted.outcomes)


@pytest.mark.parametrize("setting", ["as it comes", "kills fail", "kills reroute"])
def test_the_returns_are_misses_goodput_and_e2e_of_the_window(setting: str) -> None:
    returns = {}
    for name in BUILT_IN:
        env = DisaggRouteEnv(**ARGUMENTS[setting] | {"reward": name})
        env.reset(seed=3)
        env.action_space.seed(0)
        returns[name] = sum(step.reward for step in rollout(env))
    inside = env.simulator.trace.arrival >= PS_PER_S  # the warm start lasts 1 s
    met = met_targets(env.simulator.records, env.simulator.trace)[inside]
    rows = env.simulator.records[inside]
    assert returns["slo-miss"] == -(~met).sum()
    assert returns["goodput"] == met.sum()
    assert returns["latency"] == pytest.approx(-int((rows["end"] - rows["arrival"]).sum()) / PS_PER_S, rel=1e-12)


def test_a_request_that_is_lost_and_finds_no_instance_leaves_the_cluster() -> None:
    # The kill at 20 takes the only prefill instance, which is back at 60: the lost request is rejected at 20.
    events = (ClusterEvent(20, 0, "kill"), ClusterEvent(60, 0, "return"))
    cluster = Cluster(prefill=(engine(),), decode=(engine(),), on_kill="reroute", events=events)
    trace = requests((0, 10, 3), (70, 10, 1), (200, 10, 1))
    episode = play(environment_of(trace, cluster, reward="latency"), assign((0, 0), (0, 0), (0, 0)))
    assert episode.rewards == [-20 / PS_PER_S, -54 / PS_PER_S, -54 / PS_PER_S]


def outcome_of(**changes: Any) -> Outcome:
    trace = requests((0, 10, 3))
    fields: dict[str, Any] = {
        "dt": 0.5,
        "missed": np.array([0]),
        "ended": np.array([0]),
        "met": 0,
        "waited": 0.25,
        "records": np.zeros(1),
        "trace": trace,
    }
    return Outcome(**fields | changes)


@pytest.mark.parametrize(("name", "paid"), [("slo-miss", -1), ("goodput", 2), ("latency", -0.25)])
def test_a_built_in_reward_pays_for_an_outcome_what_the_compiled_step_pays(name: str, paid: float) -> None:
    assert rewards.make(name).of(outcome_of(met=2)) == paid


def test_a_weighted_reward_needs_no_code(clean: None) -> None:
    @rewards.register
    class Weighed(CountedReward):
        """Misses, and a little for time."""

        name = "weighed"
        weights = (-2.0, 0.0, -0.5)

    env = DisaggRouteEnv(**ARGUMENTS["kills fail"] | {"reward": "weighed"})
    alike = {name: DisaggRouteEnv(**ARGUMENTS["kills fail"] | {"reward": name}) for name in ("slo-miss", "latency")}
    for each in (env, *alike.values()):
        each.reset(seed=3)
    for step in rollout(env):
        parts = {name: other.step(step.action)[1] for name, other in alike.items()}
        assert step.reward == 2 * parts["slo-miss"] + 0.5 * parts["latency"]


def test_names_are_sorted_and_those_of_programs_are_among_them(clean: None) -> None:
    assert rewards.names() == ("goodput", "latency", "slo-miss")
    assert rewards.register(Noted) is Noted
    assert rewards.names() == ("goodput", "latency", "noted", "slo-miss")
    assert isinstance(rewards.make("noted"), Noted)


def test_the_same_class_defined_again_replaces_the_first(clean: None) -> None:
    for weight in (1.0, 2.0):

        @rewards.register
        class Cell(CountedReward):
            """A notebook cell that is run twice."""

            name = "cell"
            weights = (weight, 0.0, 0.0)

    assert rewards.make("cell").of(outcome_of()) == 2


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match=r"^unknown reward 'slo_mis'; nearest: slo-miss$"):
        rewards.make("slo_mis")


def test_a_name_that_is_taken_is_refused(clean: None) -> None:
    class Other(Noted):
        """Wants the name of a built-in one."""

        name = "goodput"

    with pytest.raises(ValueError, match="Other: the name 'goodput' is taken; choose another one"):
        rewards.register(Other)


class Nameless(Noted):
    """Has no name."""

    name = None  # type: ignore[assignment]


class Abstract(Reward):
    """Pays nothing yet."""

    name = "abstract"


class Stranger:
    """Is no reward."""

    name = "stranger"


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        (Nameless, "Nameless: name is None; it must be text"),
        (Abstract, "Abstract: of is missing; a reward must have it"),
        (Stranger, "Stranger is no class that extends Reward"),
        (Noted(), "<.*> is no class that extends Reward"),
    ],
)
def test_what_is_no_reward_is_refused(clean: None, reward: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        rewards.register(reward)
    assert rewards.names() == ("goodput", "latency", "slo-miss")


def bring(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, rewards.ENTRY_POINTS)
    rewards._entry_points.cache_clear()
    monkeypatch.setattr(rewards, "entry_points", lambda group: [point] * (group == rewards.ENTRY_POINTS))


def test_an_installed_package_brings_a_reward_by_an_entry_point(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, "noted", f"{__name__}:Noted")
    assert "noted" in rewards.names()
    env = DisaggRouteEnv(**ARGUMENTS["as it comes"] | {"reward": "noted"})
    env.reset(seed=1)
    assert next(rollout(env)).reward == 0.5


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("noted", "no.such.module:Noted", "reward 'noted' cannot be loaded from no.such.module:Noted (No module named"),
        ("noted", f"{HERE}:Missing", f"reward 'noted' cannot be loaded from {HERE}:Missing ("),
        ("stranger", f"{HERE}:Stranger", f"reward 'stranger': {HERE}:Stranger is no Reward class with that name"),
        ("abstract", f"{HERE}:Abstract", "Abstract: of is missing; a reward must have it"),
        ("other", f"{HERE}:Noted", f"reward 'other': {HERE}:Noted is no Reward class with that name"),
    ],
)
def test_a_malformed_entry_point_is_a_sentence_when_it_is_asked_for(
    clean: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    bring(monkeypatch, name, value)
    with pytest.raises(ValueError) as error:
        rewards.make(name)
    assert str(error.value).startswith(sentence)


