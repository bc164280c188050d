"""The simulator as Python drives it: time limits, snapshots, clones, growth, and the decision log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW
from disaggroute.envs.simulator import Simulator, simulator
from disaggroute.envs.trace import Trace
from disaggroute.policies import Policy, make

from ...differential.cases import Case, random_case
from ...differential.comparison import compare
from ...policies import scenes

CASES = 60


def run_to_end(simulated: Simulator, policy: Policy) -> None:
    while simulated.run():
        simulated.send(*policy.choose(simulated.admission()))


def fresh(case: Case, **options: Any) -> Simulator:
    predicted, learns = simulator.resolve_predictor(case.predicted, case.trace, 0)  # type: ignore[arg-type]
    return Simulator(case.cluster, case.trace, predicted=predicted, learns=learns, **options)


def half_way(case: Case, **options: Any) -> Simulator:
    """After half of the requests have been routed, at a decision."""
    simulated = fresh(case, **options)
    policy = make("least-loaded")
    for _ in range(len(case.trace) // 2):
        if simulated.run():
            simulated.send(*policy.choose(simulated.admission()))
    simulated.run()
    return simulated


def views(simulated: Simulator) -> list[list[int]]:
    admission = simulated.admission()
    return [*admission.prefill.tolist(), *admission.decode.tolist()]


def test_a_clone_goes_on_as_the_original_does() -> None:
    for seed in range(CASES):
        simulated = half_way(random_case(seed))
        twin = simulated.clone()
        for each in (twin, simulated):
            run_to_end(each, make("least-loaded"))
        assert (simulated.records == twin.records).all(), seed


def test_a_clone_that_decides_otherwise_leaves_the_original_alone() -> None:
    parted = 0
    for seed in range(CASES):
        case = random_case(seed)
        alone, simulated = half_way(case), half_way(case)
        run_to_end(alone, make("least-loaded"))
        twin = simulated.clone()
        run_to_end(twin, make("random"))
        run_to_end(simulated, make("least-loaded"))
        assert (simulated.records == alone.records).all(), seed
        parted += bool((twin.records != simulated.records).any())
    assert parted > CASES // 2


def test_a_clone_keeps_a_decision_log_of_its_own() -> None:
    simulated = half_way(random_case(1), log_decisions=True)
    before = simulated.decisions.copy()
    twin = simulated.clone()
    run_to_end(twin, make("random"))
    assert (simulated.decisions == before).all()
    assert (twin.decisions[: len(before)] == before).all()
    assert len(twin.decisions) > len(before)


def test_a_clone_can_be_cloned_into_again_after_both_went_on() -> None:
    from disaggroute.envs.simulator import entries

    for seed in range(CASES):
        simulated = half_way(random_case(seed))
        twin, other = simulated.clone(), simulated.clone()
        run_to_end(twin, make("random"))
        entries.clone_into(simulated.address, twin.address, 1)  # over a state with another batch and queue
        twin.records[:] = simulated.records
        for each in (twin, other):
            run_to_end(each, make("least-loaded"))
        assert (twin.records == other.records).all(), seed


def test_a_restored_snapshot_is_run_again_to_the_same_records_and_decisions() -> None:
    for seed in range(CASES):
        simulated = half_way(random_case(seed), log_decisions=True)
        kept = simulated.snapshot()
        run_to_end(simulated, make("least-loaded"))
        records, decisions = simulated.records.copy(), simulated.decisions.copy()
        simulated.restore(kept)
        run_to_end(simulated, make("random"))
        simulated.restore(kept)
        run_to_end(simulated, make("least-loaded"))
        assert (simulated.records == records).all(), seed
        assert (simulated.decisions == decisions).all(), seed


def test_a_snapshot_from_before_the_block_grew_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_FIRST_CAPACITY", 2)
    case = random_case(3, requests=40)
    simulated = fresh(case)
    simulated.run()
    start = simulated.snapshot()
    run_to_end(simulated, make("least-loaded"))
    records, end = simulated.records.copy(), simulated.snapshot()
    simulated.restore(start)
    run_to_end(simulated, make("least-loaded"))
    assert (simulated.records == records).all()
    small = fresh(case)
    small.restore(end)
    assert (small.in_flight, small.ended) == (0, 40)


def test_a_snapshot_of_a_clone_does_not_bring_its_records_along() -> None:
    simulated = half_way(random_case(1))
    twin = simulated.clone()
    simulated.restore(twin.snapshot())
    before = twin.records.copy()
    run_to_end(simulated, make("least-loaded"))
    assert (twin.records == before).all()
    assert simulated.ended == len(simulated.trace)


def test_the_parameters_of_a_policy_are_no_part_of_a_snapshot() -> None:
    of, on = scenes.trace(80), scenes.cluster()
    first, second = make("marginal-cost"), make("marginal-cost", w_q=5.0)
    simulated = scenes.simulator(on, of)
    first.prepare(simulated, 0)  # type: ignore[attr-defined]
    kept = simulated.snapshot()
    second.run_compiled(simulated, 0)  # type: ignore[attr-defined]
    records = simulated.records.copy()
    simulated.restore(kept)
    second.run_compiled(simulated, 0)  # type: ignore[attr-defined]
    assert (simulated.records == records).all()


@pytest.mark.parametrize("failures", [False, True])
def test_slots_are_added_when_more_requests_are_in_flight(monkeypatch: pytest.MonkeyPatch, failures: bool) -> None:
    monkeypatch.setattr(simulator, "_FIRST_CAPACITY", 1)
    for seed in range(CASES):
        compare(random_case(seed, failures=failures))


def test_more_than_a_thousand_requests_may_be_in_flight() -> None:
    n = 2_500
    whole = scenes.trace(n, rate=1e6)
    simulated = scenes.simulator(scenes.cluster("1P1D"), whole)
    most = 0
    while simulated.run():
        simulated.send(0, 0)
        most = max(most, simulated.in_flight)
    assert most > 1_024
    assert simulated.in_flight == 0
    assert (simulated.records["status"] == 0).all()


def test_a_run_stops_after_the_last_instant_within_its_limit() -> None:
    of = scenes.trace(60)
    simulated = scenes.simulator(scenes.cluster(), of)
    limit = int(of.arrival[30])
    policy = make("least-loaded")
    while simulated.run(limit):
        simulated.send(*policy.route(simulated.admission()))
    assert simulated.now <= limit
    over = simulated.records["end"][simulated.records["end"] > 0]
    assert len(over) == simulated.ended
    assert (over <= limit).all()
    assert simulated.ended + simulated.in_flight == 31  # the one that arrived at the limit was routed


def test_stopping_now_and_then_changes_nothing() -> None:
    for seed in range(CASES):
        case = random_case(seed)
        whole, pieces = fresh(case), fresh(case)
        policy = make("least-loaded")
        run_to_end(whole, policy)
        ends = np.unique(whole.records["end"])
        for limit in ends[:: max(1, len(ends) // 5)].tolist():
            while pieces.run(limit):
                pieces.send(*policy.choose(pieces.admission()))
            ended = whole.records["end"] <= limit
            assert pieces.ended == ended.sum(), seed
            assert (pieces.records[ended] == whole.records[ended]).all(), seed
        run_to_end(pieces, policy)
        assert (pieces.records == whole.records).all(), seed


def test_the_decision_log_holds_what_the_router_saw_of_the_pair_that_it_chose() -> None:
    for seed in range(CASES):
        simulated = fresh(random_case(seed), log_decisions=True)
        policy = make("random")
        policy.reset(seed)
        seen = []
        while simulated.run():
            admission = simulated.admission()
            p, d, probability = policy.choose(admission)
            simulated.send(p, d, probability)
            head = (admission.now, admission.poll_time, admission.index, admission.predicted)
            seen.append((*head, *admission.prefill[p].tolist(), *admission.decode[d].tolist(), probability, p, d))
        assert simulated.decisions.tolist() == seen, seed
        assert len(PREFILL_VIEW) + len(DECODE_VIEW) + 7 == len(simulated.decisions.dtype.names or ())


def test_without_a_log_there_are_no_decisions() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(5))
    run_to_end(simulated, make("round-robin"))
    assert len(simulated.decisions) == 0


def test_a_routed_request_is_seen_at_the_next_admission() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(2, rate=1e9))
    simulated.run()
    assert views(simulated)[0][0] == 0
    simulated.send(0, 0)
    simulated.run()
    assert views(simulated)[0][0] == 1


def predictions(length: int, value: int = 5) -> dict[str, Any]:
    return {"predicted": np.full(length, value, np.int32)}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (predictions(4), r"predicted has shape \(4,\); it must be \(5,\)"),
        (predictions(5, 0), "predicted of request 0 is 0; it must be at least 1 token"),
        ({}, "predicted and learns are both missing; exactly one is needed"),
        (predictions(5) | {"learns": "bucket"}, "predicted and learns are both given; exactly one is needed"),
        ({"learns": "buckt"}, "unknown learning predictor 'buckt'; nearest: bucket"),
    ],
)
def test_bad_predictions_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Simulator(scenes.cluster(), scenes.trace(5), **options)


def test_constants_of_another_cluster_are_refused() -> None:
    from disaggroute.envs import router_constants

    beliefs = router_constants.from_cluster(scenes.cluster("9P4D"))
    with pytest.raises(ValueError, match="constants are for 13 instances with 9 prefill instances"):
        Simulator(scenes.cluster(), scenes.trace(5), constants=beliefs, **predictions(5))


def pending(on: Cluster, of: Trace) -> Simulator:
    simulated = scenes.simulator(on, of)
    assert simulated.run()
    return simulated


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda s: s.send(2, 0), "prefill instance 2 does not exist; allowed are 0 to 1"),
        (lambda s: s.send(0, -1), "decode instance -1 does not exist; allowed are 0 to 3"),
        (lambda s: s.send(0, 1), "decode instance 1 is down or draining; it may not be assigned"),
    ],
)
def test_a_pair_that_may_not_be_assigned_is_refused(act: Callable[[Simulator], None], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        act(pending(scenes.drained("2P4D", 3), scenes.trace(5)))


def test_a_mixed_instance_serves_both_stages() -> None:
    with pytest.raises(ValueError, match="prefill 0 and decode 1 differ; a mixed instance serves both"):
        pending(scenes.cluster("2M"), scenes.trace(5)).send(0, 1)


def test_without_a_pending_request_there_is_nothing_to_decide() -> None:
    simulated = scenes.simulator(scenes.cluster(), scenes.trace(5))
    for act in (simulated.admission, lambda: simulated.send(0, 0)):
        with pytest.raises(RuntimeError, match="no request awaits a decision"):
            act()
