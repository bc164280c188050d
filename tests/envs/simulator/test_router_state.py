"""The state of a live router shows what the simulator would show, and its sums are those of a plain recount."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.envs import router_constants
from disaggroute.envs.cluster import MAX_TIME_PS, Cluster
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import layout as L
from disaggroute.envs.simulator.router_state import NoInstance, RouterState
from disaggroute.envs.simulator.warm import tiny_engine
from disaggroute.policies import registry
from disaggroute.policies.compiled_policy import CompiledPolicy

from ...differential.cases import random_case
from .watched_reference import LEDGER, Watched

POLICIES = (
    *(name for name in registry.names() if issubclass(registry.policy_class(name), CompiledPolicy)),
    "linear@mixed-bursty",
    "length-threshold(threshold=7.5)",
    "marginal-cost(sample=2, guard=1.2)",
    "least-ttft(decode=min-tpot)",
)
SECOND = 10**12


# --- the same as in the simulator ---------------------------------------------------------------------------


def watch(seeds: range, **knobs: bool) -> Counter[str]:
    told: Counter[str] = Counter()
    for seed in seeds:
        run = Watched(random_case(seed, **knobs), POLICIES, seed, bursts=seed % 2 == 1)
        run.run()
        told.update(run.told)
    return told


def test_views_features_choices_and_policy_states_are_those_of_the_simulator() -> None:
    told = watch(range(60))
    assert told["decisions"] > 500
    assert told["bursts"] > 100


def test_so_they_are_on_aggregated_clusters() -> None:
    assert watch(range(20), aggregated=True)["decisions"] > 150


def test_so_they_are_while_instances_fail_and_drain() -> None:
    told = watch(range(1_000, 1_060), failures=True)
    assert min(told["failed"], told["no instance"]) > 20


@pytest.mark.long
def test_so_they_are_in_many_more_cases() -> None:
    assert watch(range(2_000, 3_500))["decisions"] > 10_000


# --- the same as a recount ----------------------------------------------------------------------------------


@dataclass
class Sent:
    """A request in the plain account; instances are named by themselves, not by their index."""

    prefill: str
    decode: str
    prompt: int
    predicted: int
    tight: bool
    stage: str = "prefill"
    generated: int = 0
    adrift: bool = False


def make_cluster(prefills: int, decodes: int, *, mixed: bool, first_token: str = "decode") -> Cluster:
    engine = tiny_engine()
    if mixed:
        return Cluster(mixed=(engine,) * decodes)
    return Cluster((engine,) * prefills, (engine,) * decodes, first_token=first_token)  # type: ignore[arg-type]


def make_state(cluster: Cluster, learns: str = "bucket") -> RouterState:
    return RouterState(cluster, router_constants.from_cluster(cluster), learns=learns)


class Account:
    """A state driven by random events, and beside it a dict of requests."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.mixed = draw(st.booleans())
        self.first_token = "decode" if self.mixed else draw(st.sampled_from(["decode", "prefill"]))
        self.sent: dict[int, Sent] = {}
        self.names = 0
        self.pools: tuple[list[str], list[str]] = ([], [])
        self.closed: set[str] = set()
        self.new_pools()
        self.state = make_state(self.cluster)

    def new_pools(self) -> None:
        """Some instances go, some come, and their order changes."""
        for pool in self.pools:
            pool[:] = self.draw(st.permutations([name for name in pool if self.draw(st.booleans())]))
            for _ in range(self.draw(st.integers(0 if pool else 1, 10))):
                self.names += 1
                pool.insert(self.draw(st.integers(0, len(pool))), f"instance {self.names}")
        if self.mixed:
            self.pools[0][:] = self.pools[1]
        sizes = (len(pool) for pool in self.pools)
        self.cluster = make_cluster(*sizes, mixed=self.mixed, first_token=self.first_token)

    @property
    def instances(self) -> list[str]:
        return self.pools[1] if self.mixed else [*self.pools[0], *self.pools[1]]

    def resize(self) -> None:
        before = list(self.instances)
        self.new_pools()
        after = self.instances
        mapping = {before.index(name): after.index(name) for name in before if name in after}
        self.state = self.state.resized(self.cluster, router_constants.from_cluster(self.cluster), mapping)
        self.closed &= set(after)
        for request in self.sent.values():
            gone = request.decode not in after or (request.stage == "prefill" and request.prefill not in after)
            request.adrift = request.adrift or gone

    def send(self) -> None:
        prompt, predicted = self.draw(st.integers(1, 50)), self.draw(st.integers(1, 9))
        slo = self.draw(st.integers(0, 1))
        arguments = (prompt, slo, SECOND, SECOND, SECOND, predicted)
        opened = [[name for name in pool if name not in self.closed] for pool in self.pools]
        if not all(opened):
            with pytest.raises(NoInstance):
                self.state.ask(*arguments)
            return
        self.state.ask(*arguments)
        if self.draw(st.integers(0, 4)) == 0:
            self.state.withdraw()
            return
        d = self.draw(st.sampled_from(opened[1]))
        p = d if self.mixed else self.draw(st.sampled_from(opened[0]))
        handle = self.state.send(self.pools[0].index(p), self.pools[1].index(d))
        assert handle not in self.sent
        self.sent[handle] = Sent(p, d, prompt, predicted, slo == 0)

    def go_on(self, handle: int) -> None:
        request, act = self.sent[handle], self.draw(st.integers(0, 5))
        if act == 0:
            self.state.failed(handle)
            del self.sent[handle]
        elif request.stage == "prefill" and not self.mixed:
            self.state.prefill_done(handle)
            request.stage, request.generated = "transfer", int(self.first_token == "prefill")
        elif act == 1:
            self.state.finished(handle, self.draw(st.integers(0, 9)))
            del self.sent[handle]
        elif request.stage in ("prefill", "transfer"):
            self.state.first_token(handle)
            request.stage, request.generated = "decode", request.generated + 1
        else:
            count = self.draw(st.integers(1, 5))
            self.state.token(handle, count)
            request.generated += count

    def open_or_close(self) -> None:
        name = self.draw(st.sampled_from(self.instances))
        may = self.draw(st.booleans())
        self.state.set_open(self.instances.index(name), may)
        (self.closed.discard if may else self.closed.add)(name)

    def check(self) -> None:
        assert self.state.in_flight == len(self.sent)
        rows = self.state.snapshot()
        assert len(rows) == len(self.instances)
        for name, row in zip(self.instances, rows, strict=True):
            mine = [r for r in self.sent.values() if not r.adrift]
            queued = [r for r in mine if r.prefill == name and r.stage == "prefill"]
            taken = [r for r in mine if r.decode == name]
            expected = {
                "queued": len(queued),
                "queued_tokens": sum(r.prompt for r in queued),
                "queued_strict": sum(r.tight for r in queued),
                "in_flight": len(taken),
                "pending": sum(r.stage != "decode" for r in taken),
                "committed": sum(r.prompt + r.predicted for r in taken),
                "committed_output": sum(r.predicted for r in taken),
                "remaining_output": sum(max(0, r.predicted - r.generated) for r in taken),
                "context": sum(r.prompt + r.generated for r in taken),
                "strict": sum(r.tight for r in taken),
                "available": int(name not in self.closed),
            }
            assert {k: v for k, v in row.items() if k in expected} == {k: v for k, v in expected.items() if k in row}


@given(st.data())
@settings(max_examples=60)
def test_every_sum_equals_a_recount_whatever_happens_in_whatever_order(data: st.DataObject) -> None:
    account = Account(data.draw)
    for _ in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.integers(0, 20))
        if act == 0:
            account.resize()
        elif act == 1:
            account.open_or_close()
        elif act < 9 or not account.sent:
            account.send()
        else:
            account.go_on(data.draw(st.sampled_from(sorted(account.sent))))
        account.check()


# --- one thing at a time ------------------------------------------------------------------------------------


def disaggregated(first_token: str = "decode") -> Cluster:
    return make_cluster(2, 3, mixed=False, first_token=first_token)


def ask(state: RouterState, now: int = 0, *, prompt: int = 10, slo: int = 0, predicted: int | None = None) -> int:
    """What a request is predicted to be; it is withdrawn."""
    predicted = state.ask(prompt, slo, SECOND, SECOND, now, predicted).predicted
    state.withdraw()
    return predicted


def sent(state: RouterState, p: int = 0, d: int = 0, *, prompt: int = 10, now: int = 0, predicted: int = 5) -> int:
    state.ask(prompt, 0, SECOND, SECOND, now, predicted)
    return state.send(p, d)


def row(state: RouterState, instance: int) -> dict[str, int | str]:
    return state.snapshot()[instance]


def test_a_request_goes_through_the_ledger_stage_by_stage() -> None:
    state = make_state(disaggregated())
    handle = sent(state, 1, 2)
    assert [row(state, 1)[k] for k in PREFILL_VIEW[:3]] == [1, 10, 1]
    assert [row(state, 4)[k] for k in DECODE_VIEW[:7]] == [1, 1, 15, 5, 5, 10, 1]
    state.prefill_done(handle)
    assert [row(state, 1)[k] for k in PREFILL_VIEW[:3]] == [0, 0, 0]
    state.first_token(handle)
    assert [row(state, 4)[k] for k in DECODE_VIEW[:7]] == [1, 0, 15, 5, 4, 11, 1]
    state.token(handle)
    state.token(handle, 7)
    assert [row(state, 4)[k] for k in DECODE_VIEW[:7]] == [1, 0, 15, 5, 0, 19, 1]
    state.finished(handle, 9)
    assert state.in_flight == 0
    assert not any(row(state, 4)[k] for k in DECODE_VIEW[:7])


def test_the_token_of_the_prefill_counts_where_the_client_sees_it() -> None:
    state = make_state(disaggregated("prefill"))
    handle = sent(state)
    state.prefill_done(handle)
    assert [row(state, 2)[k] for k in ("pending", "remaining_output", "context")] == [1, 4, 11]
    state.first_token(handle)
    assert [row(state, 2)[k] for k in ("pending", "remaining_output", "context")] == [0, 3, 12]


def test_a_mixed_instance_has_done_the_prefill_when_the_first_token_comes() -> None:
    state = make_state(make_cluster(0, 2, mixed=True))
    handle = sent(state, 1, 1)
    assert row(state, 1)["queued"] == 1
    state.first_token(handle)
    assert row(state, 1)["queued"] == 0
    assert row(state, 1)["role"] == "mixed"


def test_what_is_not_streamed_finishes_without_a_first_token() -> None:
    state = make_state(disaggregated())
    handle = sent(state)
    state.prefill_done(handle)
    state.finished(handle, 20)
    assert ask(state) == 20
    assert not any(row(state, 2)[k] for k in DECODE_VIEW[:7])


@pytest.mark.parametrize("learns", ["bucket", "prompt-bucket", "prompt-regression"])
def test_the_learner_takes_in_what_has_finished_and_goes_along(learns: str) -> None:
    state = make_state(disaggregated(), learns)
    assert ask(state) == 128
    for prompt, output in ((10, 20), (40, 80)):
        handle = sent(state, prompt=prompt)
        state.prefill_done(handle)
        state.finished(handle, output)
    lost = sent(state)
    state.failed(lost)
    nothing = sent(state)
    state.prefill_done(nothing)
    state.finished(nothing, 0)
    assert ask(state) == 20
    assert ask(state, prompt=40) == 80
    twin = state.resized(*two(make_cluster(1, 1, mixed=False)), {})
    assert (ask(twin), ask(twin, prompt=40)) == (20, 80)


def two(cluster: Cluster) -> tuple[Cluster, router_constants.RouterConstants]:
    return cluster, router_constants.from_cluster(cluster)


def test_it_grows_while_requests_are_in_flight() -> None:
    state = make_state(disaggregated())
    handles = [sent(state, k % 2, k % 3, prompt=k + 1) for k in range(3_000)]
    assert len(set(handles)) == 3_000
    assert state.in_flight == 3_000
    queued = [sum(k + 1 for k in range(3_000) if k % 2 == p) for p in (0, 1)]
    assert [row(state, p)["queued_tokens"] for p in (0, 1)] == queued
    for handle in handles:
        state.failed(handle)
    assert not any(value for line in state.snapshot() for key, value in line.items() if key in LEDGER)


def test_a_handle_is_not_used_again_for_the_next_request_in_its_slot() -> None:
    state = make_state(disaggregated())
    first = sent(state)
    state.failed(first)
    second = sent(state)
    assert second != first
    with pytest.raises(ValueError, match=f"request {first} is not in flight; it was not sent or has ended"):
        state.token(first)
    state.failed(second)


def test_polls_are_seen_by_the_next_decision_with_their_age() -> None:
    state = make_state(disaggregated())
    state.polled(1, 40, 2, 7)
    state.polled(3, 50, 5, 0)
    state.poll_time(3 * SECOND)
    admission = state.ask(10, 0, SECOND, SECOND, 4 * SECOND, 5)
    assert admission.poll_time == 3 * SECOND
    assert admission.prefill[1, 3:6].tolist() == [40, 2, 7]
    assert admission.decode[1, 7:10].tolist() == [50, 5, 0]
    assert admission.prefill[0, 3:6].tolist() == [0, 0, 0]


def test_time_does_not_go_back() -> None:
    state = make_state(disaggregated())
    sent(state, now=5 * SECOND)
    state.poll_time(7 * SECOND)
    assert state.ask(10, 0, SECOND, SECOND, 6 * SECOND, 5).now == 7 * SECOND
    assert state.last_admission == 5 * SECOND


@pytest.mark.parametrize("polled", [False, True])
def test_after_a_hundred_days_the_clock_is_put_back_and_differences_stay(polled: bool) -> None:
    state = make_state(disaggregated())
    features = FeatureArrays.of_cluster(disaggregated())
    start = 11 * MAX_TIME_PS // 10
    assert start + SECOND > MAX_TIME_PS
    if polled:
        state.poll_time(20 * MAX_TIME_PS)
        start = 20 * MAX_TIME_PS
    sent(state, now=start)
    state.poll_time(start + SECOND // 4)
    admission = state.ask(10, 0, SECOND, SECOND, start + SECOND, 5)
    assert state.last_admission == start
    assert admission.now - admission.poll_time == 3 * SECOND // 4
    assert 0 <= admission.now <= MAX_TIME_PS
    weights = registry.parse('linear(prefill={"since_last*queued": 1.0})')
    assert weights.route(admission)[0] == 1  # compiled features are finite: instance 0 has one queued
    assert np.isfinite(features.of_admission(admission)["request"]).all()


def test_requests_go_on_under_their_handles_in_another_topology() -> None:
    state = make_state(disaggregated())
    queued, moved, cut, orphan = sent(state, 0, 0), sent(state, 1, 2), sent(state, 1, 1), sent(state, 0, 2)
    for handle in (moved, cut):
        state.prefill_done(handle)
        state.first_token(handle)
    state.polled(4, 9, 8, 7)
    state.poll_time(SECOND)
    state.set_open(4, False)
    # Prefill 1 and decode 1 go, decode 2 comes first, a new one last.
    twin = state.resized(*two(make_cluster(1, 3, mixed=False)), {0: 0, 2: 2, 4: 1})
    assert twin.in_flight == 4
    assert row(twin, 0)["queued"] == 2
    assert [row(twin, i)["in_flight"] for i in (1, 2, 3)] == [2, 1, 0]
    assert [row(twin, 1)[k] for k in ("used", "running", "waiting", "available")] == [9, 8, 7, 0]
    assert row(twin, 3)["available"] == 1
    twin.token(cut, 3)  # its decode instance is gone
    twin.finished(cut, 30)
    assert ask(twin, 2 * SECOND) == 30
    twin.token(moved, 2)
    assert row(twin, 1)["context"] == 10 + 3 + 10
    for handle in (queued, moved, orphan):
        twin.failed(handle)
    assert twin.in_flight == 0
    assert not any(value for line in twin.snapshot() for key, value in line.items() if key in LEDGER)
    assert state.in_flight == 4  # the old one is as it was


def test_one_decision_is_made_at_a_time() -> None:
    state = make_state(disaggregated())
    for act in (state.withdraw, lambda: state.send(0, 0)):
        with pytest.raises(RuntimeError, match="no request awaits a decision; call ask"):
            act()
    state.ask(10, 0, SECOND, SECOND, 0)
    with pytest.raises(RuntimeError, match="a request awaits its decision already"):
        state.ask(10, 0, SECOND, SECOND, 0)
    with pytest.raises(RuntimeError, match="open and close instances before or after"):
        state.set_open(0, False)
    with pytest.raises(RuntimeError, match="send or withdraw it first"):
        state.resized(*two(disaggregated()), {})
    assert state.in_flight == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": 0}, "prompt is 0 tokens; it must lie between 1 and 1073741824"),
        ({"slo": 2}, "slo is 2; it must be 0 .tight. or 1 .loose."),
        ({"ttft_target": -1}, "ttft_target is -1 ps; it must lie between 0 and"),
        ({"tpot_target": 1 << 60}, "tpot_target is 1152921504606846976 ps; it must lie"),
        ({"predicted": 0}, "predicted is 0 tokens; it must lie between 1 and"),
        ({"now": -1}, "now is -1 ps; it must be at least 0"),
    ],
)
def test_a_request_out_of_range_is_refused(changes: dict[str, int], sentence: str) -> None:
    state = make_state(disaggregated())
    usual = {"prompt": 10, "slo": 0, "ttft_target": SECOND, "tpot_target": SECOND, "now": 0, "predicted": 5}
    with pytest.raises(ValueError, match=sentence):
        state.ask(**{**usual, **changes})
    state.ask(**usual)


def test_without_a_learner_a_prediction_must_be_given() -> None:
    state = make_state(disaggregated(), learns="")
    with pytest.raises(ValueError, match="predicted is None; without a predictor that learns it must be given"):
        ask(state)
    assert ask(state, predicted=7) == 7


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ((2, 0), "prefill instance 2 does not exist; allowed are 0 to 1"),
        ((0, -1), "decode instance -1 does not exist; allowed are 0 to 2"),
        ((0, 1), "decode instance 1 is down or draining; it may not be assigned"),
        ((0.0, 0), "prefill instance is 0.0; it must be an integer"),
    ],
)
def test_a_request_goes_only_where_it_may(pair: tuple[int, int], sentence: str) -> None:
    state = make_state(disaggregated())
    state.set_open(3, False)
    assert not state.is_open(3)
    state.ask(10, 0, SECOND, SECOND, 0)
    for act in (state.check, state.send):
        with pytest.raises(ValueError, match=sentence):
            act(*pair)
    state.send(0, 2)


def test_a_mixed_instance_serves_both_legs() -> None:
    state = make_state(make_cluster(0, 2, mixed=True))
    state.ask(10, 0, SECOND, SECOND, 0)
    with pytest.raises(ValueError, match="prefill 0 and decode 1 differ; a mixed instance serves both"):
        state.send(0, 1)


@pytest.mark.parametrize(
    ("mixed", "instances", "pool"),
    [(False, (0, 1), "prefill"), (False, (2, 3, 4), "decode"), (True, (0, 1, 2), "mixed")],
)
def test_a_closed_pool_takes_no_request(mixed: bool, instances: tuple[int, ...], pool: str) -> None:
    state = make_state(make_cluster(2, 3, mixed=mixed))
    for i in instances:
        state.set_open(i, False)
        state.set_open(i, False)
    with pytest.raises(NoInstance, match=f"no {pool} instance may be assigned"):
        ask(state)
    state.set_open(instances[-1], True)
    assert ask(state) == 128


def test_events_out_of_turn_are_refused_and_change_nothing() -> None:
    state = make_state(disaggregated())
    handle = sent(state)
    before = state.snapshot()
    for act, sentence in (
        (lambda: state.first_token(handle), "its prefill is not done, or its first token is out already"),
        (lambda: state.token(handle), "its first token is not out"),
        (lambda: state.finished(handle, 5), "its prefill is not done"),
    ):
        with pytest.raises(ValueError, match=f"request {handle}: {sentence}"):
            act()
    assert state.snapshot() == before
    state.prefill_done(handle)
    with pytest.raises(ValueError, match=f"request {handle}: its prefill was done before"):
        state.prefill_done(handle)
    state.first_token(handle)
    with pytest.raises(ValueError, match="first token is out already"):
        state.first_token(handle)
    for count in (0, -3):
        with pytest.raises(ValueError, match=f"count is {count}; it must be at least 1"):
            state.token(handle, count)
    with pytest.raises(ValueError, match="output is -1; it must be at least 0"):
        state.finished(handle, -1)
    state.failed(handle)


@pytest.mark.parametrize("handle", [-1, 0, 1 << 24, 5_000, (1 << 60) + 3])
def test_a_handle_that_was_never_given_is_refused(handle: int) -> None:
    state = make_state(disaggregated())
    state.ask(10, 0, SECOND, SECOND, 0)  # waits in slot 0
    for act in (
        state.prefill_done,
        state.first_token,
        state.token,
        state.failed,
        lambda handle: state.finished(handle, 1),
    ):
        with pytest.raises(ValueError, match=f"request {handle} is not in flight"):
            act(handle)


def test_instances_and_polls_out_of_range_are_refused() -> None:
    state = make_state(disaggregated())
    for act in (state.is_open, lambda i: state.set_open(i, True), lambda i: state.polled(i, 0, 0, 0)):
        for instance in (-1, 5):
            with pytest.raises(ValueError, match=f"instance {instance} does not exist; allowed are 0 to 4"):
                act(instance)
    with pytest.raises(ValueError, match="running of instance 2 is -1; it must lie between 0 and 2147483647"):
        state.polled(2, 0, -1, 0)
    with pytest.raises(ValueError, match="now is -1 ps; it must be at least 0"):
        state.poll_time(-1)


def test_a_topology_that_does_not_fit_is_refused() -> None:
    state, other = make_state(disaggregated()), make_cluster(1, 2, mixed=False)
    for mapping, sentence in (
        ({0: 1}, "mapping: instance 0 .prefill. becomes 1 .decode.; an instance keeps its role"),
        ({2: 1, 3: 1}, "mapping names a new instance twice"),
        ({5: 1}, "instance 5 does not exist; allowed are 0 to 4"),
        ({2: 3}, "instance 3 does not exist; allowed are 0 to 2"),
    ):
        with pytest.raises(ValueError, match=sentence):
            state.resized(*two(other), mapping)
    with pytest.raises(ValueError, match="constants are for 3 instances with 1 prefill instances; custom has 5 with 2"):
        RouterState(disaggregated(), router_constants.from_cluster(other))
    with pytest.raises(ValueError, match="buket"):
        make_state(disaggregated(), "buket")
    engine = tiny_engine()
    many = Cluster(mixed=(engine,) * (L.MAX_INSTANCES + 1))
    with pytest.raises(ValueError, match="4097 instances; allowed are up to 4096"):
        make_state(many)
