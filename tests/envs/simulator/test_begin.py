"""A simulator that begins again with other requests is as good as a new one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.simulator import Simulator, simulator
from disaggroute.policies import make

from ...differential.cases import Case, random_case


def options(case: Case) -> dict[str, object]:
    predicted, learns = simulator.resolve_predictor(case.predicted, case.trace, 0)  # type: ignore[arg-type]
    return {"predicted": predicted, "learns": learns}


def run_for(simulated: Simulator, decisions: int) -> None:
    policy = make("least-loaded")
    while decisions > 0 and simulated.run():
        simulated.send(*policy.choose(simulated.admission()))
        decisions -= 1


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 40))
def test_what_was_simulated_before_leaves_no_trace(seed: int, other: int, aggregated: bool, decisions: int) -> None:
    before, after = random_case(seed, aggregated=aggregated), random_case(other, aggregated=aggregated)
    after = replace(after, cluster=before.cluster)
    try:
        fresh = Simulator(after.cluster, after.trace, log_decisions=True, log_ended=True, **options(after))  # type: ignore[arg-type]
    except ValueError:  # the other case's requests do not fit this cluster
        return
    used = Simulator(before.cluster, before.trace, log_decisions=True, log_ended=True, **options(before))  # type: ignore[arg-type]
    run_for(used, decisions)
    used.begin(after.trace, **options(after))  # type: ignore[arg-type]
    assert used.now == used.in_flight == used.ended == len(used.decisions) == len(used.ended_requests) == 0
    for each in (fresh, used):
        run_for(each, 10**9)
    assert used.records.tobytes() == fresh.records.tobytes()
    assert used.decisions.tobytes() == fresh.decisions.tobytes()
    assert used.ended_requests.tolist() == fresh.ended_requests.tolist()


def test_a_grown_block_stays_grown_and_parameters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_FIRST_CAPACITY", 1)
    case = random_case(3)
    used = Simulator(case.cluster, case.trace, **options(case))  # type: ignore[arg-type]
    used.set_parameters(np.array([1.5]))
    run_for(used, 10**9)
    words, records = used.address, used.records.copy()
    used.begin(case.trace, **options(case))  # type: ignore[arg-type]
    assert used.address == words
    run_for(used, 10**9)
    assert (used.records == records).all()


def test_a_clone_that_begins_again_leaves_the_original_alone() -> None:
    case = random_case(5)
    original = Simulator(case.cluster, case.trace, log_ended=True, **options(case))  # type: ignore[arg-type]
    run_for(original, 10**9)
    records, ended = original.records.copy(), original.ended_requests.copy()
    original.clone().begin(case.trace, **options(case))  # type: ignore[arg-type]
    assert (original.records == records).all() and (original.ended_requests == ended).all()


def test_a_trace_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    case = random_case(4, aggregated=False)
    used = Simulator(case.cluster, case.trace, **options(case))  # type: ignore[arg-type]
    run_for(used, 3)
    now, records = used.now, used.records.copy()
    long = replace(case.trace, prompt=np.full(len(case.trace), 10**6, np.int32))
    with pytest.raises(ValueError, match="1000000 prompt"):
        used.begin(long, learns="bucket")
    with pytest.raises(ValueError, match="predicted and learns are both missing; exactly one is needed"):
        used.begin(case.trace)
    assert used.trace is case.trace and used.now == now and (used.records == records).all()
