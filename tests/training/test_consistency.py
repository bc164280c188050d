"""The numbers agree with exact arithmetic, and with what a request needs alone."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.records import FINISHED, RECORD
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.envs.trace import Trace
from disaggroute.policies import registry
from disaggroute.training.metrics import SCALE_QUARTERS, met_targets

Row = tuple[int, int, int, int, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**15),  # TTFT
        st.integers(0, 10**15),  # first to last token
        st.integers(1, 5),  # output tokens
        st.integers(0, 10**15),  # TTFT target
        st.integers(0, 10**15),  # TPOT target
        st.integers(0, 2),  # status
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS, st.sampled_from(SCALE_QUARTERS))
def test_meeting_a_target_is_decided_as_by_exact_fractions(rows: list[Row], quarters: int) -> None:
    ttft, span, output, ttft_target, tpot_target, status = (
        np.array(c, np.int64) for c in zip(*rows, strict=True)
    )
    records = np.zeros(len(rows), RECORD)
    records["first_token"], records["last_token"] = ttft, ttft + span
    records["status"] = status
    zeros = np.zeros(len(rows), np.int64)
    trace = Trace(zeros, zeros + 1, output, zeros, zeros, ttft_target, tpot_target)
    expected = [
        state == FINISHED
        and first <= Fraction(first_limit * quarters, 4)
        and (tokens == 1 or Fraction(between, tokens - 1) <= Fraction(pace * quarters, 4))
        for first, between, tokens, first_limit, pace, state in rows
    ]
    assert met_targets(records, trace, quarters).tolist() == expected


def test_no_request_is_served_faster_than_alone_and_none_meets_what_it_misses_alone() -> None:
    for topology in ("1P2D", "2M"):
        setting = Setting.of(Scenario.make(topology=topology, rate=8, duration_s=60, warmup_s=0))
        prepared = setting.prepare(4)
        records = setting.simulate(prepared, registry.make("least-loaded"), 4).records
        finished = records["status"] == FINISHED
        e2e = records["last_token"] - records["arrival"]
        assert finished.all() and (e2e >= prepared.alone).all()
        met = met_targets(records, prepared.trace)
        assert not (met & ~prepared.feasible).any()
