"""What must hold in every run of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.envs.simulator import reference
from disaggroute.envs.simulator.reference import ReferenceRun, run_reference
from disaggroute.envs.simulator.reference_instance import Phase

from .cases import MOST_REQUESTS, Case, cases, random_case


class Watched(reference._Simulation):
    """Looks at the whole cluster after every instant."""

    def make_passes(self, now: int) -> None:
        super().make_passes(now)
        live = {r for r in self.requests if r.phase not in (Phase.ENDED, Phase.FUTURE)}
        for instance in self.instances:
            assert 0 <= instance.used <= instance.engine.num_blocks
            assert len(instance.running) <= instance.engine.max_num_seqs
            assert set(instance.blocks) <= live
            if instance.step is not None:
                partial = [c.request for c in instance.step.chunks if c.end < c.request.to_compute]
                assert partial in ([], instance.running[-1:])
            assert (instance.step is not None) == bool(instance.running)
            assert instance.state != "down" or not (instance.used or instance.running or instance.waiting)
        assert {r for router in self.routers for r in router.in_flight} == live


def run(case: Case, simulation: type[reference._Simulation] = Watched) -> ReferenceRun:
    return simulation(case.trace, case.cluster, None, case.assignment, case.predicted, True).run()


@given(cases())
def test_blocks_limits_and_ledgers_hold_at_every_instant(case: Case) -> None:
    run(case)


@given(cases())
def test_every_request_ends_and_its_times_are_in_order(case: Case) -> None:
    records = run(case).records
    assert np.array_equal(records["arrival"], case.trace.arrival)
    for row, output in zip(records, case.trace.output, strict=True):
        assert row["status"] in (FINISHED, FAILED, REJECTED)
        assert (row["generated"] == output) == (row["status"] == FINISHED)
        life = ["arrival", "prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end"]
        if case.cluster.first_token == "decode" or case.cluster.aggregated:
            life += ["first_token", "last_token", "end"]
        reached = [row[name] for name in life if row[name] >= 0]
        assert reached == sorted(reached)
        assert row["first_token"] <= row["last_token"] <= row["end"]
        assert row["max_stall"] <= max(0, row["last_token"] - row["first_token"])
        if row["status"] == FINISHED:
            assert row["end"] == row["last_token"]
            assert int(row["max_stall"]) * (int(output) - 1) >= row["last_token"] - row["first_token"]


@given(cases())
def test_a_run_is_deterministic_and_unchanged_by_observation(case: Case) -> None:
    first = run(case)
    second = run_reference(
        case.trace, case.cluster, assignment=case.assignment, predicted=case.predicted, observe=False
    )
    assert np.array_equal(first.records, second.records)
    assert np.array_equal(first.decisions, second.decisions)
    assert len(second.prefill_views) == 0


@given(cases())
def test_every_admission_is_a_decision(case: Case) -> None:
    outcome = run(case)
    records = outcome.records
    counts = np.bincount(outcome.decisions, minlength=len(records))
    rejected = records["status"] == REJECTED
    assert np.array_equal(counts, 1 + records["reroutes"] - rejected)
    assert len(outcome.prefill_views) == len(outcome.decode_views) == len(outcome.decisions)
    interval = case.cluster.poll_interval
    assert np.all(outcome.poll_times % interval == 0)
    assert np.all(np.diff(outcome.poll_times) >= 0)


def test_a_shorter_case_is_the_start_of_a_longer_one() -> None:
    knobs: dict[str, Any] = {"tiny": True, "aggregated": False, "failures": True}
    short = random_case(3, requests=4, **knobs)
    long = random_case(3, requests=MOST_REQUESTS, **knobs)
    assert np.array_equal(short.trace.arrival, long.trace.arrival[:4])
    assert np.array_equal(short.assignment[0], long.assignment[0][:4])
    assert short.cluster.events == long.cluster.events
