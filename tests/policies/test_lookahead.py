"""Lookahead: what it believes, what it tries, and what it leaves alone."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.envs import router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import Simulator, entries, simulate
from disaggroute.envs.simulator import known as K
from disaggroute.envs.simulator import layout as L
from disaggroute.envs.simulator.router_state import RouterState
from disaggroute.envs.trace import Trace
from disaggroute.policies import make, parse
from disaggroute.policies.compiled import lookahead as core
from disaggroute.policies.lookahead import Lookahead
from disaggroute.policies.policy import Policy

from . import scenes
from .beliefs import ahead_of, believed_end, cut, desk_at, known_at, real_end, simulator

MS = 10**9
OF = scenes.trace(160, seed=3, rate=25)
LEDGER_PREFILL = [PREFILL_VIEW.index(name) for name in ("queued", "queued_tokens", "queued_strict")]
LEDGER_DECODE = [i for i, name in enumerate(DECODE_VIEW) if name not in ("used", "running", "waiting", "available")]


def lookahead(**params: Any) -> Lookahead:
    policy = make("lookahead", **params)
    assert isinstance(policy, Lookahead)
    return policy


def tight_memory(on: Cluster, blocks: int) -> Cluster:
    def small(engines: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(engine, num_blocks=blocks) for engine in engines)

    return replace(on, prefill=small(on.prefill), decode=small(on.decode), mixed=small(on.mixed))


# --- the belief -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 150),
    seed=st.integers(0, 3),
    rate=st.sampled_from([8.0, 25.0, 45.0]),
    topology=st.sampled_from(["1P1D", "2P4D", "3P2D"]),
    first_token=st.sampled_from(["decode", "prefill"]),
    base=st.sampled_from(["least-loaded", "round-robin", "random"]),
)
def test_with_exact_predictions_and_constants_the_belief_ends_as_reality_does(
    count: int, seed: int, rate: float, topology: str, first_token: str, base: str
) -> None:
    """What a router cannot see is when a step that gave no token began, and in which step a pull was asked for."""
    on = scenes.cluster(topology, first_token=first_token)
    simulated, admission = ahead_of(on, scenes.trace(160, seed, rate), make(base), count)
    pair = make("least-loaded").route(admission)
    believed = np.sort(believed_end(lookahead(), admission, pair), order="arrival")
    real = real_end(simulated, pair)
    assert (believed["arrival"] == real["arrival"]).all()
    assert (believed["generated"] == real["generated"]).all()
    for field in ("first_token", "end"):
        late = np.abs(believed[field] - real[field])
        assert (late <= 60 * MS).all()
        assert np.median(late) <= 2 * MS


def test_a_belief_without_transfers_is_exact() -> None:
    """One decode instance, and every request is prefilled or decodes: all that matters was seen."""
    on = scenes.cluster("2P1D")
    exact = 0
    for count in range(20, 80):
        simulated, admission = ahead_of(on, OF, make("round-robin"), count)
        policy = lookahead()
        if (known_at(policy, admission)[:, K.K_STAGE] == K.IN_TRANSFER).any():
            continue
        believed = np.sort(believed_end(policy, admission, (0, 0)), order="arrival")
        real = real_end(simulated, (0, 0))
        for field in ("arrival", "first_token", "end"):
            assert (believed[field] == real[field]).all(), (count, field)
        exact += 1
    assert exact > 10


@pytest.mark.parametrize("topology", ["2P4D", "3M"])
@pytest.mark.parametrize("blocks", [4000, 300])
def test_the_ledger_of_a_belief_is_the_routers(topology: str, blocks: int) -> None:
    on = tight_memory(scenes.cluster(topology), blocks)
    for count in range(10, 150, 9):
        _, admission = ahead_of(on, OF, make("least-loaded"), count)
        desk = desk_at(lookahead(samples=1), admission)
        core.try_pending(admission.address, desk.address, 1)
        prefill, decode = np.empty_like(admission.prefill), np.empty_like(admission.decode)
        entries.view(int(desk.words[core.W_BELIEF]), prefill.ctypes.data, decode.ctypes.data)
        assert (prefill[:, LEDGER_PREFILL] == admission.prefill[:, LEDGER_PREFILL]).all()
        assert (decode[:, LEDGER_DECODE] == admission.decode[:, LEDGER_DECODE]).all()


def test_what_is_known_of_a_request_is_what_came_back_from_it() -> None:
    simulated, admission = ahead_of(scenes.cluster(), OF, make("least-loaded"), 100)
    rows = known_at(lookahead(), admission)
    rows = rows[np.argsort(rows[:, K.K_ARRIVAL])]
    real = real_end(simulated, (0, 0))[:-1]
    now = admission.now
    assert len(rows) == len(real) > 20
    assert (rows[:, K.K_ARRIVAL] == real["arrival"]).all()
    assert (rows[:, K.K_PLACE] & L.PLACE_MASK == real["prefill"]).all()
    assert (rows[:, K.K_PREDICTED] == real["predicted"]).all()
    assert (rows[:, K.K_PREFILLED] == np.where(real["prefill_end"] <= now, real["prefill_end"], -1)).all()
    assert (rows[:, K.K_FIRST] == np.where(real["first_token"] <= now, real["first_token"], -1)).all()
    assert ((rows[:, K.K_TOKENS] > 0) == (real["first_token"] <= now)).all()
    assert (rows[:, K.K_TOKENS] < real["generated"]).all()
    assert set(rows[:, K.K_STAGE]) == {K.IN_PREFILL, K.IN_TRANSFER, K.IN_DECODE}


def test_lengths_that_are_not_out_change_nothing() -> None:
    """Two traces that differ only in tokens after the last decision are routed alike."""
    on, count = scenes.cluster(), 60
    predicted = np.full(len(OF), 200, np.int32)
    policy = lookahead(base="marginal-cost", spread=0.5)

    def picks(of: Trace) -> tuple[list[tuple[int, int]], Any]:
        simulated = simulator(on, of, predicted)
        policy.reset(5)
        found = []
        for _ in range(count):
            assert simulated.run()
            found.append(policy.route(simulated.admission()))
            simulated.send(*found[-1])
        return found, simulated

    first, simulated = picks(OF)
    now = simulated.now
    while simulated.run():
        simulated.send(0, 0)
    longer = np.where(simulated.records["end"] > now, OF.output + 900, OF.output).astype(np.int32)
    assert (longer != OF.output).sum() > 20
    second, _ = picks(replace(OF, output=longer))
    assert first == second


def test_wrong_constants_make_another_belief() -> None:
    def ends(**changes: Any) -> int:
        simulated = simulator(scenes.cluster(), cut(OF, 81), **changes)
        for _ in range(80):
            assert simulated.run()
            simulated.send(*make("least-loaded").route(simulated.admission()))
        assert simulated.run()
        return int(believed_end(lookahead(), simulated.admission(), (0, 0))["end"].max())

    assert ends(base_decode=0.05) > ends() > ends(base_decode=0.005)


def test_a_request_with_more_tokens_than_predicted_has_some_to_come() -> None:
    on, of = scenes.cluster(), replace(cut(OF, 40), output=np.full(40, 1500, np.int32))
    simulated = simulator(on, of, np.full(40, 10, np.int32))
    for _ in range(39):
        assert simulated.run()
        simulated.send(*make("least-loaded").route(simulated.admission()))
    assert simulated.run()
    admission = simulated.admission()
    policy = lookahead(overrun=0.5)
    rows = known_at(policy, admission)
    desk = desk_at(policy, admission)
    core.try_pending(admission.address, desk.address, 1)
    records = desk.records[: len(rows)]
    over = rows[:, K.K_TOKENS] > 10
    assert over.sum() > 5
    assert (records["generated"][over] == np.ceil(1.5 * rows[over, K.K_TOKENS] - 0.5)).all()


# --- decisions ------------------------------------------------------------------------------------------------


def test_it_picks_the_instances_on_which_the_request_is_served_first() -> None:
    """The second instances are idle; the base would send everything to the first."""
    on = scenes.cluster("2P2D")
    n = 30
    of = Trace(
        arrival=np.arange(1, n + 1, dtype=np.int64) * MS,
        prompt=np.full(n, 3000, np.int32),
        output=np.full(n, 50, np.int32),
        slo=np.zeros(n, np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.full(n, 400 * MS, np.int64),
        tpot_target=np.full(n, 40 * MS, np.int64),
    )
    simulated = simulator(on, of)
    policy = lookahead(base='linear(prefill={"index": 1}, decode={"index": 1})', horizon_s=0)
    for _ in range(6):
        assert simulated.run()
        policy.route(simulated.admission())
        simulated.send(0, 0)
    assert simulated.run()
    assert policy.route(simulated.admission()) == (1, 1)
    assert parse(policy.parameters.base).route(simulated.admission()) == (0, 0)


def test_a_margin_that_nothing_reaches_leaves_the_base() -> None:
    on = scenes.cluster()
    constants = router_constants.from_cluster(on)

    def columns(text: str) -> list[tuple[int, int]]:
        records = simulate(OF, on, policy=parse(text), predictor="oracle", constants=constants).records
        return list(zip(records["prefill"].tolist(), records["decode"].tolist(), strict=True))

    for base in ("size-interval", "round-robin", "random"):
        assert columns(f"lookahead(base={base}, margin=1000)") == columns(base)
    assert columns("lookahead(base=round-robin)") != columns("round-robin")


@pytest.mark.parametrize("topology", ["2P4D", "3M"])
@pytest.mark.parametrize("base", ["size-interval", "random", "linear", "best-fit", "length-threshold"])
def test_the_compiled_loop_and_the_object_decide_alike(topology: str, base: str) -> None:
    on = scenes.cluster(topology)
    policy = lookahead(base=base, budget=48, spread=0.5)
    compiled = simulator(on, OF)
    policy.run_compiled(compiled, 4)
    stepped = simulator(on, OF)
    policy.reset(4)
    while stepped.run():
        stepped.send(*policy.route(stepped.admission()))
    assert (compiled.records == stepped.records).all()


def test_the_same_seed_makes_the_same_decisions_and_another_one_others() -> None:
    def records(seed: int) -> np.ndarray[Any, Any]:
        simulated = simulator(scenes.cluster(), OF)
        lookahead(base="random").run_compiled(simulated, seed)
        return simulated.records

    assert (records(1) == records(1)).all()
    assert (records(1) != records(2)).any()


def test_a_decision_that_is_asked_for_again_is_the_same() -> None:
    policy = lookahead(spread=1)
    _, admission = ahead_of(scenes.cluster(), OF, policy, 70)
    assert len({policy.route(admission) for _ in range(5)}) == 1


def test_nothing_is_changed_by_a_decision_but_what_belongs_to_the_policy() -> None:
    simulated, admission = ahead_of(scenes.cluster(), OF, make("least-loaded"), 90)
    simulated.admission()
    before = simulated.snapshot()
    desk_at(lookahead(), admission)
    lookahead().route(admission)
    after = simulated.snapshot()
    scratch = _costs(simulated)
    changed = np.flatnonzero(before.block != after.block)
    assert set(changed.tolist()) <= scratch
    assert (before.records == after.records).all()


def _costs(simulated: Simulator) -> set[int]:
    """Words of the ledger in which policies leave their costs."""
    block = simulated.block
    start = int(block[L.H_O_LEDGER])
    prefill = {start + L.PRE_COST + i for i in range(L.LANES)}
    return prefill | {start + int(block[L.H_LEDGER_DECODE]) + L.DEC_COST + i for i in range(L.LANES)}


@pytest.mark.parametrize(("budget", "samples"), [(1, 1), (5, 3), (16, 2), (200, 2), (200, 7)])
def test_the_budget_is_kept(budget: int, samples: int) -> None:
    policy = lookahead(budget=budget, samples=samples)
    _, admission = ahead_of(scenes.cluster(), OF, policy, 60)
    policy.route(admission)
    desk = policy._desk_at(admission)
    count, routed = int(desk.words[core.W_COUNT]), int(desk.words[core.W_ROUTED])
    assert count == min(8, budget)
    assert routed <= budget
    assert routed >= budget - count * samples or count == 1


def test_no_request_of_a_future_comes_after_the_horizon() -> None:
    for horizon in (0.0, 0.5):
        policy = lookahead(horizon_s=horizon, budget=4_000)
        _, admission = ahead_of(scenes.cluster(), OF, policy, 60)
        policy.route(admission)
        desk = policy._desk_at(admission)
        first = int(desk.words[core.W_KNOWN]) + 1
        arrivals = desk.rows["arrival"][first:]
        arrivals = arrivals[: int(np.argmax(arrivals == L.FOREVER))]
        assert (arrivals <= admission.now + horizon * 1e12).all()
        assert (len(arrivals) > 0) == (horizon > 0)


def test_the_candidates_are_the_pairs_that_the_base_ranks_highest() -> None:
    on = scenes.cluster("4P4D")
    _, admission = ahead_of(on, OF, make("least-loaded"), 90)
    policy = lookahead(base="least-loaded", candidates=3)
    desk = desk_at(policy, admission)
    pairs = desk.pairs.reshape(-1, 2).tolist()
    queued, in_flight = admission.prefill[:, 0], admission.decode[:, 0]
    p, d = (np.argsort(counts, kind="stable").tolist() for counts in (queued, in_flight))
    assert pairs == [[p[0], d[0]], [p[0], d[1]], [p[1], d[0]]]


def test_instances_that_may_not_be_assigned_are_no_candidates() -> None:
    policy = lookahead()
    simulated = simulator(scenes.drained("2P4D", 0, 3), OF)
    while simulated.run():
        pair = policy.route(simulated.admission())
        assert pair[0] == 1 and pair[1] != 1
        simulated.send(*pair)


def test_beyond_its_room_the_base_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disaggroute.policies.lookahead.MOST_IN_FLIGHT", 10)
    policy = lookahead(base="least-loaded")
    _, admission = ahead_of(scenes.cluster(), OF, make("least-loaded"), 90)
    assert policy.route(admission) == make("least-loaded").route(admission)
    assert policy._desk_at(admission).words[core.W_ROUTED] == 0


def test_it_decides_on_a_single_pair_without_trials() -> None:
    policy = lookahead()
    _, admission = ahead_of(scenes.cluster("1P1D"), OF, policy, 20)
    assert policy.route(admission) == (0, 0)
    assert policy._desk_at(admission).words[core.W_ROUTED] == 0


def test_its_memory_is_kept_until_the_cluster_is_another() -> None:
    policy = lookahead()
    simulated, admission = ahead_of(scenes.cluster(), OF, policy, 20)
    desk = policy._desk_at(admission)
    policy.reset(3)
    assert policy._desk_at(simulated.admission()) is desk
    slower = tight_memory(scenes.cluster(), 999)
    other = Simulator(slower, cut(OF, 3), predicted=OF.output[:3], constants=admission.constants)
    assert other.run()
    assert policy._desk_at(other.admission()) is not desk


def test_it_has_its_own_memory_for_each_router() -> None:
    on = scenes.cluster(routers=3)
    simulated = simulator(on, OF)
    lookahead().run_compiled(simulated, 0)
    assert simulated.ended == len(OF)


def test_a_blocked_cluster_is_believed_and_left() -> None:
    """Little memory, bad predictions: queues before decode, preemptions, beliefs that are wrong."""
    on = tight_memory(scenes.cluster("2P2D"), 300)
    simulated = simulator(on, OF, np.full(len(OF), 30, np.int32))
    lookahead(spread=1).run_compiled(simulated, 0)
    assert simulated.ended == len(OF)
    assert simulated.records["preemptions"].sum() > 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_decides_like_the_original(duplicate: Any) -> None:
    policy = lookahead(base="random")
    _, admission = ahead_of(scenes.cluster(), OF, policy, 40)
    twin = duplicate(policy)
    assert twin.route(admission) == policy.route(admission)


# --- in front of engines --------------------------------------------------------------------------------------


def told(on: Cluster, of: Trace, by: Policy, count: int) -> tuple[RouterState, Admission, Simulator]:
    """A router's state that was told, in time, what happened in a simulator; the same decision is due in both."""
    simulated, admission = ahead_of(on, of, by, count)
    policy = lookahead()
    rows = known_at(policy, admission)
    now = admission.now
    events: list[tuple[int, int, str, int]] = []
    done = simulated.records
    for k in range(count):
        events.append((int(of.arrival[k]), k, "arrival", 0))
    for k in np.flatnonzero(done["end"][:count] >= 0).tolist():
        events.append((int(done["prefill_end"][k]), k, "prefill", 0))
        events.append((int(done["first_token"][k]), k, "first", 0))
        events.append((int(done["end"][k]), k, "end", int(of.output[k])))
    by_arrival = {int(of.arrival[k]): k for k in range(count)}
    for row in rows.tolist():
        k = by_arrival[row[K.K_ARRIVAL]]
        if row[K.K_PREFILLED] >= 0:
            events.append((row[K.K_PREFILLED], k, "prefill", 0))
        if row[K.K_FIRST] >= 0:
            events.append((row[K.K_FIRST], k, "first", 0))
        if row[K.K_TOKENS] > 1:
            events.append((row[K.K_LAST], k, "tokens", row[K.K_TOKENS] - 1))
    state = RouterState(on, router_constants.from_cluster(on), learns="")
    handles: dict[int, int] = {}
    for time, k, what, number in sorted(events, key=lambda event: event[0]):
        if what == "arrival":
            targets = int(of.ttft_target[k]), int(of.tpot_target[k])
            state.ask(int(of.prompt[k]), int(of.slo[k]), *targets, time, int(of.output[k]))
            handles[k] = state.send(int(done["prefill"][k]), int(done["decode"][k]))
        elif what == "prefill":
            state.prefill_done(handles[k], time)
        elif what == "first":
            state.first_token(handles[k], time)
        elif what == "tokens":
            state.token(handles[k], number, time)
        else:
            state.finished(handles[k], number)
    targets = int(of.ttft_target[count]), int(of.tpot_target[count])
    asked = state.ask(int(of.prompt[count]), int(of.slo[count]), *targets, now, int(of.output[count]))
    return state, asked, simulated


def test_a_live_router_knows_the_same_and_decides_alike() -> None:
    for count in range(20, 150, 13):
        _, live, simulated = told(scenes.cluster(), OF, make("least-loaded"), count)
        admission = simulated.admission()
        columns = [i for i in range(K.K_LEFT) if i != K.K_ORDER]
        ours, theirs = (known_at(lookahead(), each)[:, columns] for each in (live, admission))
        assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
        assert lookahead(horizon_s=0).route(live) == lookahead(horizon_s=0).route(admission)


def test_what_is_known_outlives_growth_and_another_topology() -> None:
    on = scenes.cluster()
    constants = router_constants.from_cluster(on)
    state, asked, _ = told(on, OF, make("least-loaded"), 80)
    columns = [K.K_ARRIVAL, K.K_PREFILLED, K.K_FIRST, K.K_LAST, K.K_TTFT]
    before = known_at(lookahead(), asked)
    state.withdraw()
    resized = state.resized(on, constants, {i: i for i in range(6)})
    again = resized.ask(100, 0, MS, MS, asked.now, 50)
    assert (known_at(lookahead(), again)[:, columns] == before[:, columns]).all()
    resized.withdraw()
    for _ in range(2_000):
        resized.ask(10, 0, MS, MS, asked.now, 5)
        resized.send(0, 0)
    later = known_at(lookahead(), resized.ask(10, 0, MS, MS, asked.now, 5))
    old = later[later[:, K.K_ARRIVAL] < asked.now]
    assert (old[:, columns] == before[:, columns]).all()


def test_wall_time_ends_the_trials_of_a_live_decision() -> None:
    policy = lookahead(budget_ms=5.0, samples=10, budget=800)
    _, admission = ahead_of(scenes.cluster(), OF, make("least-loaded"), 60)
    ticks = iter([0.0, 0.001, 0.004, 0.006])
    policy.choose(admission, clock=lambda: next(ticks))
    desk = policy._desk_at(admission)
    assert desk.words[core.W_ROUTED] <= 3 * 80
    assert desk.words[core.W_ROUTED] > 2 * 8


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lookahead(base=nothing)", "unknown policy 'nothing'"),
        ("lookahead(base=lookahead)", "the base must be a built-in policy other than lookahead"),
        ("lookahead(budget=0)", "budget is 0"),
        ("lookahead(samples=0)", "samples is 0"),
        ("lookahead(candidates=9)", "candidates is 9"),
        ("lookahead(horizon_s=-1)", "horizon_s is -1"),
        ("lookahead(recent=129)", "recent is 129"),
        ("lookahead(spread=2)", "spread is 2"),
        ("lookahead(softness=-1)", "softness is -1"),
        ("lookahead(margin=-1)", "margin is -1"),
        ("lookahead(overrun=-1)", "overrun is -1"),
        ("lookahead(budget_ms=0)", "budget_ms is 0"),
    ],
)
def test_bad_parameters_are_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="lookahead") as caught:
        parse(text)
    assert sentence in str(caught.value)


def test_wall_time_is_refused_in_a_simulated_run() -> None:
    with pytest.raises(ValueError, match=r"budget_ms is 2\.0; in a simulated run it must be none"):
        lookahead(budget_ms=2).run_compiled(simulator(scenes.cluster(), OF), 0)


def test_missing_constants_are_asked_for() -> None:
    simulated = scenes.simulator(scenes.cluster(), OF, constants=False)
    with pytest.raises(ValueError, match="lookahead: constants is None"):
        lookahead().run_compiled(simulated, 0)
    assert simulated.run()
    with pytest.raises(ValueError, match="lookahead: constants is None"):
        lookahead().route(simulated.admission())


def test_constants_with_which_time_would_run_out_are_refused() -> None:
    simulated = simulator(scenes.cluster(), OF, base_decode=1e5)
    with pytest.raises(ValueError, match=r"instance \d: .* could take .* s; allowed are at most"):
        lookahead().run_compiled(simulated, 0)


def test_a_base_that_is_made_for_other_pools_is_refused() -> None:
    policy = lookahead(base="size-interval(prefill_cuts=[100])")
    with pytest.raises(ValueError, match="prefill_cuts holds 1 numbers; a pool of 3 needs 2"):
        policy.check_pools(3, 4)


def test_the_hash_is_over_the_base_as_well() -> None:
    assert lookahead(base="linear").hash != lookahead(base="size-interval").hash
    assert lookahead(base="linear").hash == parse("lookahead(base=linear)").hash
    assert str(parse("lookahead(base=marginal-cost(w_q=0.1, sample=2))")).count("sample=2") == 1
