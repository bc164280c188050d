"""The trace and the engines that both simulators are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disaggroute import simulate
from disaggroute.benchmarks.peers import match, probes
from disaggroute.benchmarks.peers.match import Match


def test_the_trace_has_the_means_and_the_load_that_were_asked_for() -> None:
    made = Match.make(4_000, 0.5, 1)
    trace = made.trace
    assert len(trace) == 4_000 and trace.arrival[0] == 0 and (trace.prompt >= 1).all()
    # Four standard errors of 0.8-lognormals.
    assert trace.prompt.mean() == pytest.approx(512, rel=0.06) and trace.output.mean() == pytest.approx(256, rel=0.06)
    assert np.log(trace.prompt).std() == pytest.approx(0.8, abs=0.04)
    assert made.rate == 0.5 * made.capacity
    assert 3_999 / (trace.arrival[-1] / 1e12) == pytest.approx(made.rate, rel=0.07)


def test_a_trace_that_waits_from_the_start_is_completed_at_the_capacity(drawn: Match) -> None:
    waiting = replace(drawn.trace, arrival=np.zeros_like(drawn.trace.arrival))
    assert match.capacity(drawn.trace, drawn.cluster) == match.capacity(waiting, drawn.cluster) == drawn.capacity


def test_a_trace_is_the_same_for_the_same_seed_and_another_for_another(drawn: Match) -> None:
    again, other = Match.make(200, 0.8, 0), Match.make(200, 0.8, 1)
    assert (again.trace.arrival == drawn.trace.arrival).all() and (again.trace.prompt == drawn.trace.prompt).all()
    assert (other.trace.prompt != drawn.trace.prompt).any()


def test_recompute_that_takes_no_time_ends_a_preempted_request_earlier() -> None:
    probe = probes.PROBES[2]
    paid, free = (
        simulate(probe.trace(), cluster, "round-robin").records
        for cluster in (probe.cluster(), match.without_recompute(probe.cluster()))
    )
    assert paid["preemptions"].sum() > 0 and free["preemptions"].sum() > 0
    # One prompt of 1,500 tokens and its generated tokens are computed anew.
    assert paid["last_token"].max() - free["last_token"].max() > 0.04925e9 * 1_500


@pytest.mark.parametrize("probe", probes.PROBES, ids=["transfers", "offers", "recompute"])
def test_the_requests_of_a_probe_can_be_told_apart_and_are_served(probe: probes.Probe) -> None:
    assert len(set(probe.requests)) == len(probe.requests)
    records = simulate(probe.trace(), probe.cluster(), "round-robin").records
    assert (records["last_token"] > 0).all()
