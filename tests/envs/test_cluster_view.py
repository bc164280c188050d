"""Views of a simulated cluster, held against the records that the run ends in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.envs.cluster import Cluster, ClusterEvent
from disaggroute.envs.cluster_view import ClusterView, view_of
from disaggroute.envs.simulator import Simulator, simulator
from disaggroute.policies import make

from ..differential.cases import Case, random_case
from ..differential.scenarios import engine, requests

CASES = 160

Moment = tuple[ClusterView, Any, list[int]]
"""What was seen at a decision, the admission, and the requests that were sent before."""


def moments(case: Case) -> tuple[list[Moment], npt.NDArray[Any]]:
    """Views at every decision under `random`, and the records of the run."""
    predicted, learns = simulator.resolve_predictor(case.predicted, case.trace, 0)  # type: ignore[arg-type]
    simulated = Simulator(case.cluster, case.trace, predicted=predicted, learns=learns)
    policy = make("random")
    policy.reset(1)
    seen: list[Moment] = []
    sent: list[int] = []
    while simulated.run():
        admission = simulated.admission()
        seen.append((view_of(simulated), admission, list(sent)))
        sent.append(admission.index)
        simulated.send(*policy.route(admission))
    return seen, simulated.records


def cases(**knobs: Any) -> list[Case]:
    """Random cases in which no request is routed twice: records tell of the last attempt only."""
    made = [random_case(seed, **knobs) for seed in range(CASES)]
    return [replace(case, cluster=replace(case.cluster, on_kill="fail")) for case in made]


def stages(records: npt.NDArray[Any], sent: list[int], now: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Which requests were where at a decision: what ends now has ended, the passes of this instant are to come."""
    alive = np.zeros(len(records), np.bool_)
    alive[sent] = records["end"][sent] > now

    def begun(name: str) -> npt.NDArray[np.bool_]:  # by a pass
        return (records[name] >= 0) & (records[name] < now)

    def ended(name: str) -> npt.NDArray[np.bool_]:
        return (records[name] >= 0) & (records[name] <= now)

    return {
        "alive": alive,
        "queued": alive & ~begun("prefill_start"),
        "prefill": alive & begun("prefill_start") & ~ended("prefill_end"),
        "held": alive & ended("prefill_end") & ~begun("reserve"),
        "transit": alive & begun("reserve") & ~ended("transfer_end"),
        "there": alive & ended("transfer_end"),
        "streams": alive & ended("first_token"),
    }


def test_requests_are_where_their_records_say() -> None:
    compared = np.zeros(3, np.int64)
    for case in cases(aggregated=False):
        seen, records = moments(case)
        calm = records["preemptions"].max(initial=0) == 0  # a preempted request is queued again, which no record tells
        for view, admission, sent in seen:
            at = stages(records, sent, admission.now)
            assert view.in_flight == at["alive"].sum() + 1, case.label  # the one that awaits its decision
            for one in view.pool("prefill"):
                mine = records["prefill"] == one.index
                expected = [(at[name] & mine).sum() for name in ("queued", "prefill", "held", "transit")]
                assert [one.queued, one.running, one.held, one.in_transit] == expected, case.label
                assert one.committed == (at["queued"] | at["prefill"])[mine].sum()
                assert one.arrived == 0
            for one in view.pool("decode"):
                mine = records["decode"] == one.index
                assert one.in_transit == (at["transit"] & mine).sum(), case.label
                here = (at["held"] | at["transit"] | at["there"]) & mine
                assert one.queued + one.in_transit + one.arrived + one.running == here.sum(), case.label
                assert one.committed == (at["alive"] & mine).sum()
                if calm:
                    assert one.queued == (at["held"] & mine).sum(), case.label
                    if case.cluster.first_token == "decode":  # a request that has arrived has no token yet
                        assert one.arrived <= (at["there"] & mine & ~at["streams"]).sum()
                        compared += np.array([one.queued, one.in_transit, one.arrived]) > 0
    assert (compared >= [10, 20, 3]).all()


def test_mixed_instances_hold_what_was_sent_to_them() -> None:
    for case in cases(aggregated=True, failures=False):
        seen, records = moments(case)
        for view, admission, sent in seen:
            at = stages(records, sent, admission.now)
            for one in view.pool("mixed"):
                mine = at["alive"] & (records["decode"] == one.index)
                assert one.queued + one.running == one.committed == mine.sum(), case.label
                assert (one.held, one.in_transit, one.arrived) == (0, 0, 0)


def test_no_cache_is_overfull_and_held_blocks_are_in_use() -> None:
    for case in cases(aggregated=False, failures=False):
        seen, records = moments(case)
        for view, admission, sent in seen:
            at = stages(records, sent, admission.now)
            for one in view.instances:
                assert 0 <= one.kv_used <= one.kv_capacity and one.running <= one.running_limit
            for one in view.pool("prefill"):
                size = case.cluster.prefill[0].block_size
                blocks = -(-case.trace.prompt // size) * (records["prefill"] == one.index)
                kept = blocks[at["held"] | at["transit"]].sum()
                assert kept <= one.kv_used <= kept + blocks[at["prefill"]].sum(), case.label


def test_between_events_a_view_is_what_a_poll_of_that_instant_reports() -> None:
    compared = 0
    for case in cases(tiny=True):
        case = replace(case, cluster=replace(case.cluster, poll_interval=1))
        seen, records = moments(case)
        times = np.unique(np.concatenate([records[name] for name in records.dtype.names[1:9]]))
        events = {event.time for event in case.cluster.events}
        for (view, admission, _), (_, before, _) in zip(seen[1:], seen, strict=False):
            now = admission.now
            if now in times or now in events or before.now == now:
                continue
            views = [*admission.prefill.tolist(), *admission.decode.tolist()]
            polls = [row[-4:] for row in (views[len(views) // 2 :] if admission.aggregated else views)]
            for one, (used, running, waiting, available) in zip(view.instances, polls, strict=True):
                assert (one.kv_used, one.running) == (used, running), case.label
                others = 0 if one.role == "prefill" else one.in_transit + one.arrived
                assert one.queued + others == waiting, case.label
                assert (one.state == "up") == bool(available), case.label
                compared += one.running > 0
    assert compared > 200


def test_looking_changes_nothing() -> None:
    for case in cases()[:30]:
        seen, records = moments(case)
        predicted, learns = simulator.resolve_predictor(case.predicted, case.trace, 0)  # type: ignore[arg-type]
        simulated = Simulator(case.cluster, case.trace, predicted=predicted, learns=learns)
        policy = make("random")
        policy.reset(1)
        for _, expected, _ in seen:
            assert simulated.run()
            admission = simulated.admission()
            assert (admission.prefill == expected.prefill).all() and (admission.decode == expected.decode).all()
            simulated.send(*policy.route(admission))
        assert not simulated.run()
        assert (simulated.records == records).all(), case.label


def test_the_request_that_awaits_its_decision_is_shown() -> None:
    second = 10**12
    trace = replace(
        requests((3 * second, 8, 5), slo=[1]),
        ttft_target=np.array([second // 2]),
        tpot_target=np.array([second // 100]),
    )
    simulated = Simulator(Cluster(prefill=(engine(),), decode=(engine(),)), trace, predicted=np.array([7]))
    assert view_of(simulated).pending is None
    simulated.run()
    view = view_of(simulated, action=(0, 0), reward=-1.0, goodput=0.5)
    assert view.time == 3.0 and view.pending is not None
    assert (view.pending.request, view.pending.slo, view.pending.prompt, view.pending.predicted) == (0, "loose", 8, 7)
    assert (view.pending.ttft_target, view.pending.tpot_target) == (0.5, 0.01)
    assert (view.action, view.reward, view.goodput) == ((0, 0), -1.0, 0.5)
    assert [view.chosen(one) for one in view.instances] == [True, True]
    simulated.send(0, 0)
    assert view_of(simulated).pending is None


def test_what_ends_at_the_instant_of_a_decision_has_ended_and_its_passes_are_to_come() -> None:
    # On paper: prefill ends at 28, the transfer of two blocks at 39; steps end at 49, 59, …; the second step, whose
    # pass is at 49, takes a third block.
    trace = requests((0, 8, 30), (38, 4, 1), (39, 4, 1), (49, 4, 1), (50, 4, 1))
    simulated = Simulator(Cluster(prefill=(engine(),), decode=(engine(),)), trace, predicted=trace.output)
    seen = []
    while simulated.run():
        prefill, decode = view_of(simulated).instances
        seen.append((prefill.in_transit, prefill.kv_used, decode.in_transit, decode.arrived, decode.kv_used))
        simulated.send(0, 0)
    # The second prompt is in prefill from 38 on, with one block.
    assert seen == [(0, 0, 0, 0, 0), (1, 2, 1, 0, 2), (0, 1, 0, 1, 2), (0, 1, 0, 0, 2), (0, 1, 0, 0, 3)]


def test_drained_and_dead_instances_are_shown_as_such_and_leased_blocks_stay_in_use() -> None:
    events = (ClusterEvent(5, 2, "drain"), ClusterEvent(30, 1, "kill"))
    cluster = Cluster(prefill=(engine(),), decode=(engine(),) * 2, events=events)
    simulated = Simulator(cluster, requests((0, 8, 3), (35, 4, 2)), predicted=np.array([3, 2]))
    simulated.run()
    simulated.send(0, 0)
    assert not simulated.run(34)
    view = view_of(simulated)
    assert [one.state for one in view.instances] == ["up", "down", "draining"]
    assert view.instances[0].kv_used == 2  # two blocks, until the lease ends at 28 + 50
    assert (view.instances[0].in_transit, view.in_flight, view.ended) == (0, 0, 1)


def test_every_router_counts() -> None:
    cluster = Cluster(prefill=(engine(),), decode=(engine(),), routers=2)
    simulated = Simulator(cluster, requests((0, 8, 3), (1, 8, 3), (2, 8, 3)), predicted=np.array([3, 3, 3]))
    for _ in range(2):
        simulated.run()
        simulated.send(0, 0)
    simulated.run()
    assert [one.committed for one in view_of(simulated).instances] == [2, 2]


@pytest.mark.parametrize(("topology", "roles"), [("2P4D", ["prefill"] * 2 + ["decode"] * 4), ("3M", ["mixed"] * 3)])
def test_instances_are_listed_in_the_order_of_the_cluster(topology: str, roles: list[str]) -> None:
    from ..policies import scenes

    view = view_of(scenes.simulator(scenes.cluster(topology), scenes.trace(3)))
    assert [one.role for one in view.instances] == roles
    assert [one.name for one in view.instances][-1] == f"{roles[-1]}/{roles.count(roles[-1]) - 1}"
    assert list(view.pools) == list(dict.fromkeys(roles))
