"""The live router decides as the policy says, and whatever a policy does, every request gets its instances."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import PS_PER_S, Cluster
from disaggroute.envs.profiles import SloTargets
from disaggroute.envs.simulator.warm import tiny_engine
from disaggroute.live.router import Decision, LiveRouter, NoInstance
from disaggroute.policies import Choice, Policy, registry

TARGETS = SloTargets((PS_PER_S, 3 * PS_PER_S), (PS_PER_S // 20, 3 * PS_PER_S // 20))
MINUTE = 60 * PS_PER_S


class Scripted(Policy):
    """Answers or raises what the test says; remembers what it saw."""

    name = "scripted"
    answer: Any = (0, 0)
    seen: Admission | None = None
    seeds: list[int] = []  # noqa: RUF012 - of the class, for the test to read
    lasts_s = 0.0

    def reset(self, seed: int) -> None:
        type(self).seeds.append(seed)

    def choose(self, admission: Admission) -> Choice:
        type(self).seen = admission
        Clock.now += self.lasts_s
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]

    def route(self, admission: Admission) -> tuple[int, int]:
        return self.choose(admission)[:2]


class First(Scripted):
    name = "first-scripted"


class Second(Scripted):
    name = "second-scripted"


class PlainRoute(Policy):
    """Without a `choose` of its own."""

    name = "plain-route"

    def route(self, admission: Admission) -> tuple[int, int]:
        return len(admission.prefill) - 1, len(admission.decode) - 1


class Picky(Policy):
    """Made for one size."""

    name = "picky"

    def check_pools(self, prefills: int, decodes: int) -> None:
        if prefills == 0:
            raise ValueError(f"picky is made for {decodes} mixed")
        if (prefills, decodes) != (2, 3):
            raise ValueError("picky is made for 2 prefill and 3 decode instances")

    def route(self, admission: Admission) -> tuple[int, int]:
        return 0, 0


class Clock:
    """Seconds that pass only when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return Clock.now


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies above are in the registry for one test."""
    for policy in (First, Second, PlainRoute, Picky):
        monkeypatch.setitem(registry._classes, policy.name, policy)
    for script in (First, Second):
        script.answer, script.seen, script.seeds, script.lasts_s = (0, 0), None, [], 0.0


def make_cluster(prefills: int = 2, decodes: int = 3, mixed: int = 0) -> Cluster:
    engine = tiny_engine()
    if mixed:
        return Cluster(mixed=(engine,) * mixed)
    return Cluster((engine,) * prefills, (engine,) * decodes)


def make(policy: str = "least-loaded", cluster: Cluster | None = None, **changes: Any) -> LiveRouter:
    cluster = cluster or make_cluster()
    return LiveRouter(cluster, router_constants.from_cluster(cluster), TARGETS, policy, clock=Clock(), **changes)


def decide(router: LiveRouter, now: int = 0, **changes: Any) -> Decision:
    return router.decide(**{"prompt": 100, "slo": 0, "output_hint": None, "now": now, **changes})


def test_a_decision_counts_in_the_ledger_until_its_request_ends() -> None:
    router = make()
    made = [decide(router) for _ in range(4)]
    assert [(d.prefill, d.decode) for d in made] == [(0, 0), (1, 1), (0, 2), (1, 0)]
    assert {(d.policy, d.probability, d.fallback_reason, d.shadow) for d in made} == {("least-loaded", 1.0, None, None)}
    assert len({d.handle for d in made}) == 4
    assert router.in_flight == router.decisions == 4
    router.state.prefill_done(made[0].handle)
    assert [row["queued"] for row in router.snapshot()[:2]] == [1, 2]
    for d in made:
        router.state.failed(d.handle)
    assert router.in_flight == 0


def test_a_policy_is_parsed_with_its_parameters_and_reset_with_the_seed() -> None:
    router = make("marginal-cost(w_q=0.5)", seed=7)
    assert router.policy == decide(router).policy == "marginal-cost(w_q=0.5)"
    First.seeds = []
    router.switch_policy("first-scripted")
    assert set(First.seeds) == {7}
    router.switch_policy("first-scripted", seed=3)
    assert First.seeds[-1] == 3


def test_a_policy_file_decides() -> None:
    router = make("linear@mixed-bursty")
    assert decide(router).policy == "linear@mixed-bursty"
    assert router.fallbacks == {}


def test_a_policy_without_choose_is_asked_to_route() -> None:
    made = decide(make("plain-route"))
    assert (made.prefill, made.decode, made.probability) == (1, 2, 1.0)


def test_the_probability_of_the_choice_is_told() -> None:
    assert decide(make("random")).probability == pytest.approx(1 / 6)


def test_the_hint_takes_the_place_of_the_prediction() -> None:
    router = make()
    assert decide(router).predicted == 128
    made = decide(router, output_hint=17)
    assert made.predicted == made.admission.predicted == 17
    router.state.prefill_done(made.handle)
    router.state.finished(made.handle, 40)
    assert decide(router).predicted == 40


def test_targets_are_those_of_the_class_or_of_the_request() -> None:
    router = make("first-scripted")

    def seen(**changes: Any) -> tuple[int, int]:
        decide(router, **changes)
        assert First.seen is not None
        return First.seen.ttft_target, First.seen.tpot_target

    assert seen() == (TARGETS.ttft[0], TARGETS.tpot[0])
    assert seen(slo=1) == (TARGETS.ttft[1], TARGETS.tpot[1])
    assert seen(ttft_target=0.25) == (PS_PER_S // 4, TARGETS.tpot[0])
    assert seen(slo=1, tpot_target=0.5) == (TARGETS.ttft[1], PS_PER_S // 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"slo": 2}, "slo is 2; it must be 0 .tight. or 1 .loose."),
        ({"ttft_target": -1.0}, "ttft_target is -1.0 s; it must lie between 0 and 576460 s"),
        ({"tpot_target": float("nan")}, "tpot_target is nan s; it must lie between 0 and"),
        ({"prompt": 0}, "prompt is 0 tokens; it must lie between 1 and"),
        ({"output_hint": 0}, "predicted is 0 tokens; it must lie between 1 and"),
        ({"exclude": {5}}, "instance 5 does not exist; allowed are 0 to 4"),
    ],
)
def test_a_request_out_of_range_is_refused_and_leaves_no_trace(changes: dict[str, Any], sentence: str) -> None:
    router = make()
    with pytest.raises(ValueError, match=sentence):
        decide(router, **changes)
    assert router.in_flight == router.decisions == 0
    assert decide(router).handle > 0


# --- a policy that fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KeyError("x"), "error"),
        (None, "error"),
        ((1,), "error"),
        ((0, 0, 0.0), "error"),
        ((0, 0, float("nan")), "error"),
        ("ab", "error"),
        ((0.0, 0), "unavailable"),
        ((0, 3), "unavailable"),
        ((-1, 0), "unavailable"),
        ((1, 0), "unavailable"),  # it is closed
    ],
)
def test_least_loaded_decides_for_a_policy_that_fails(answer: Any, reason: str) -> None:
    router = make("first-scripted")
    router.state.set_open(1, False)
    busy = decide(router)
    First.answer = answer
    made = decide(router)
    assert (made.prefill, made.decode) == (0, 1)
    assert (made.policy, made.fallback_reason, made.probability) == ("least-loaded", reason, 1.0)
    assert router.fallbacks == {reason: 1}
    First.answer = (0, 2)
    again = decide(router)
    assert (again.decode, again.policy, again.fallback_reason) == (2, "first-scripted", None)
    assert router.in_flight == 3
    router.state.failed(busy.handle)


def test_a_choice_that_comes_too_late_is_not_taken() -> None:
    router = make("first-scripted", budget_s=0.25)
    First.answer, First.lasts_s = (1, 2), 0.25
    in_time = decide(router)
    assert (in_time.prefill, in_time.decode, in_time.fallback_reason, in_time.seconds) == (1, 2, None, 0.25)
    First.lasts_s = 0.5
    late = decide(router)
    assert (late.prefill, late.decode, late.fallback_reason, late.seconds) == (0, 0, "late", 0.5)
    assert router.fallbacks == {"late": 1}


def test_mixed_instances_are_chosen_twice() -> None:
    router = make("first-scripted", make_cluster(mixed=2))
    First.answer = (1, 1)
    assert decide(router).decode == 1
    First.answer = (0, 1)
    made = decide(router)
    assert (made.prefill, made.decode, made.fallback_reason) == (0, 0, "unavailable")


def test_a_failing_policy_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    router = make("first-scripted")
    First.answer = RuntimeError("no\nidea")
    with caplog.at_level(logging.WARNING, "disaggroute.live.router"):
        for now in (0, 1, MINUTE - 1, MINUTE, MINUTE + 1):
            decide(router, now)
    assert [record.getMessage() for record in caplog.records] == [
        "policy first-scripted: it raised RuntimeError: no idea; least-loaded decides (so far: 1 error)",
        "policy first-scripted: it raised RuntimeError: no idea; least-loaded decides (so far: 4 error)",
    ]


def test_what_is_no_failure_of_the_policy_goes_through_and_leaves_no_request_behind() -> None:
    router = make("first-scripted")

    class Stop(BaseException):
        pass

    def stop(admission: Admission) -> None:
        raise Stop

    router._policy = router._policy._replace(choose=stop)
    with pytest.raises(Stop):
        decide(router, exclude={0})
    assert router.in_flight == 0
    assert router.state.is_open(0)
    router.switch_policy("round-robin")
    decide(router)


# --- a policy that looks on -----------------------------------------------------------------------------------


def test_the_shadow_sees_the_same_and_moves_nothing() -> None:
    router = make("first-scripted", shadow="second-scripted")
    Second.answer = (1, 2)
    made = decide(router)
    assert (made.prefill, made.decode, made.shadow) == (0, 0, (1, 2))
    assert First.seen is Second.seen is made.admission
    assert router.shadow_agreed == 0
    Second.answer = (0, 0, 0.5)
    assert decide(router).shadow == (0, 0)
    assert router.shadow_agreed == 1
    assert [row["in_flight"] for row in router.snapshot()[2:]] == [2, 0, 0]


@pytest.mark.parametrize(("answer", "reason"), [(KeyError("x"), "error"), ((0, 9), "unavailable"), ((1, 1), "late")])
def test_a_shadow_that_fails_is_counted_and_the_request_goes_its_way(
    answer: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = make("first-scripted", shadow="second-scripted")
    Second.answer, Second.lasts_s = answer, float(reason == "late")
    First.answer = (1, 1)
    with caplog.at_level(logging.WARNING, "disaggroute.live.router"):
        made = [decide(router) for _ in range(2)]
    assert {(d.prefill, d.decode, d.shadow, d.fallback_reason) for d in made} == {(1, 1, None, None)}
    assert router.shadow_failures == {reason: 2}
    assert router.fallbacks == {}
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("shadow second-scripted: it ")


def test_the_shadow_is_compared_with_what_fell_in() -> None:
    router = make("first-scripted", shadow="round-robin")
    First.answer = KeyError("x")
    made = decide(router)
    assert (made.policy, made.shadow) == ("least-loaded", (0, 0))
    assert router.shadow_agreed == 1


# --- changes --------------------------------------------------------------------------------------------------


def test_the_ledger_stays_when_the_policy_changes() -> None:
    router = make("first-scripted")
    decide(router)
    router.switch_policy("least-loaded")
    assert router.policy == "least-loaded"
    made = decide(router)
    assert (made.prefill, made.decode) == (1, 1)
    assert router.shadow is None
    router.switch_shadow("round-robin")
    assert router.shadow == "round-robin"
    assert decide(router).shadow == (0, 0)
    router.switch_shadow(None)
    assert decide(router).shadow is None


@pytest.mark.parametrize("text", ["marginal-cots", "marginal-cost(w_q=-1)", "linear@nowhere"])
def test_a_policy_that_cannot_serve_is_refused_and_the_old_one_goes_on(text: str) -> None:
    router = make("round-robin", shadow="random")
    for switch in (router.switch_policy, router.switch_shadow):
        with pytest.raises(ValueError, match=r"marginal-cost|w_q|nowhere"):
            switch(text)
    with pytest.raises(ValueError, match=r"marginal-cost|w_q|nowhere"):
        make(text)
    assert (router.policy, router.shadow) == ("round-robin", "random")


def test_a_policy_is_told_the_sizes_of_the_pools() -> None:
    router = make("picky")
    with pytest.raises(ValueError, match="picky is made for 2 prefill and 3 decode instances"):
        make("picky", make_cluster(1, 3))
    larger = make_cluster(2, 4)
    decide(router)
    with pytest.raises(ValueError, match="picky is made for 2 prefill and 3 decode instances"):
        router.resize(larger, router_constants.from_cluster(larger), {i: i for i in range(5)})
    assert len(router.snapshot()) == 5
    assert router.in_flight == 1
    with pytest.raises(ValueError, match="picky is made for 3 mixed"):
        make("picky", make_cluster(mixed=3))


def test_requests_and_what_was_learned_stay_when_instances_come_and_go() -> None:
    router = make("round-robin", shadow="round-robin")
    made = [decide(router) for _ in range(3)]
    router.state.prefill_done(made[2].handle)
    router.state.finished(made[2].handle, 30)
    smaller = make_cluster(1, 2)  # prefill 0 and decode 1 go
    router.resize(smaller, router_constants.from_cluster(smaller), {1: 0, 2: 1, 4: 2})
    assert router.in_flight == 2
    assert [row["in_flight"] for row in router.snapshot()[1:]] == [0, 0]  # of both requests an instance is gone
    for d in made[:2]:
        router.state.failed(d.handle)
    again = [decide(router) for _ in range(3)]
    assert [(d.prefill, d.decode, d.shadow) for d in again] == [(0, 0, (0, 0)), (0, 1, (0, 1)), (0, 0, (0, 0))]
    assert again[0].predicted == 30
    assert router.fallbacks == router.shadow_failures == {}


# --- instances ------------------------------------------------------------------------------------------------


def test_a_retry_avoids_what_it_is_told_to_avoid_this_once() -> None:
    router = make()
    router.state.set_open(1, False)
    made = decide(router, exclude={1, 2, 4})
    assert (made.prefill, made.decode) == (0, 1)
    assert made.admission.decode[:, -1].tolist() == [0, 1, 0]
    assert [router.state.is_open(i) for i in range(5)] == [True, False, True, True, True]
    assert decide(router).decode == 0


@pytest.mark.parametrize("exclude", [{0, 1}, {2, 3, 4}])
def test_without_an_instance_there_is_no_decision(exclude: set[int]) -> None:
    router = make(shadow="random")
    with pytest.raises(NoInstance, match="instance may be assigned"):
        decide(router, exclude=exclude)
    assert router.in_flight == router.decisions == 0
    assert decide(router).fallback_reason is None


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="budget_s is 0; it must be above 0"):
        make(budget_s=0)
