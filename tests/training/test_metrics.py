"""The numbers of a run, on records written by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.envs.records import FAILED, FINISHED, RECORD, REJECTED
from disaggroute.envs.trace import Trace
from disaggroute.envs.window import Window
from disaggroute.training.metrics import (
    inter_token_p99,
    met_targets,
    pool_balance,
    summarise,
)
from disaggroute.training.summary import Quantiles, Summary

S = 1_000_000_000_000
MS = S // 1000


def make(rows: list[dict[str, Any]]) -> tuple[npt.NDArray[Any], Trace]:
    """Records and their trace; TTFT target 100 ms, TPOT target 10 ms unless a row says otherwise."""
    records = np.full(len(rows), -1, RECORD)
    for name in ("preemptions", "max_stall", "status", "prefill", "decode", "generated"):
        records[name] = 0
    for k, row in enumerate(rows):
        for name, value in row.items():
            if name in (RECORD.names or ()):
                records[name][k] = value
    trace = Trace(
        arrival=np.array([row["arrival"] for row in rows]),
        prompt=np.array([row.get("prompt", 100) for row in rows]),
        output=np.array([row.get("output", 11) for row in rows]),
        slo=np.array([row.get("slo", 0) for row in rows]),
        family=np.array([row.get("family", 0) for row in rows]),
        ttft_target=np.array([row.get("ttft_target", 100 * MS) for row in rows]),
        tpot_target=np.array([row.get("tpot_target", 10 * MS) for row in rows]),
        families=("chat", "document"),
    )
    return records, trace


def request(at: int, ttft: int, span: int, **more: Any) -> dict[str, Any]:
    """A finished request: arrival, TTFT and first to last token in ps."""
    return {
        "arrival": at,
        "first_token": at + ttft,
        "last_token": at + ttft + span,
        "end": at + ttft + span,
    } | more


def summary(rows: list[dict[str, Any]], **options: Any) -> Summary:
    records, trace = make(rows)
    options = {"window": Window(0, 100 * S), "pools": {"prefill": 2, "decode": 4}, "gpus": 6} | options
    return summarise(records, trace, options.pop("window"), **options)


def test_a_request_meets_its_targets_up_to_the_last_picosecond() -> None:
    records, trace = make(
        [
            request(0, 100 * MS, 100 * MS),
            request(0, 100 * MS + 1, 100 * MS),
            request(0, 100 * MS, 100 * MS + 1),
        ]
    )
    assert met_targets(records, trace).tolist() == [True, False, False]


def test_a_missed_request_missed_its_ttft_target_its_tpot_target_or_both() -> None:
    late, slow = 100 * MS + 1, 100 * MS + 1
    got = summary(
        [
            request(0, MS, MS),
            request(1, late, MS),
            request(2, MS, slow),
            request(3, MS, slow),
            request(4, late, slow),
            request(5, MS, MS, status=FAILED),
            {"arrival": 6, "status": REJECTED},
        ]
    )
    assert (got.missed.ttft, got.missed.tpot, got.missed.both) == (1, 2, 3)
    assert got.met + 6 == got.requests
    assert {key: got.row()[key] for key in ("missed_ttft", "missed_tpot", "missed_both")} == {
        "missed_ttft": 1,
        "missed_tpot": 2,
        "missed_both": 3,
    }


def test_one_output_token_meets_any_tpot() -> None:
    records, trace = make([request(0, MS, 0, output=1, tpot_target=0)])
    assert met_targets(records, trace).tolist() == [True]


def test_failed_and_rejected_requests_have_missed_whatever_their_times() -> None:
    got = summary(
        [
            request(0, MS, MS),
            request(1, MS, MS, status=FAILED),
            {"arrival": 2, "end": 2, "status": REJECTED, "prefill": -1, "decode": -1},
        ]
    )
    assert (got.requests, got.met, got.failed, got.rejected) == (3, 1, 1, 1)
    assert got.goodput == pytest.approx(1 / 3)
    assert all(share == pytest.approx(1 / 3) for share in got.scaled.values())
    assert got.beyond_3x == pytest.approx(2 / 3)
    # Delays that never end stay in the quantiles as infinite ones.
    assert math.isinf(got.ttft.p999) and math.isinf(got.e2e.p50)
    assert got.max_delay == pytest.approx(0.001)


def test_only_arrivals_inside_the_window_count_and_all_of_them() -> None:
    rows = [request(t * S, MS, MS) for t in range(10)]
    got = summary(rows, window=Window(3 * S, 7 * S))
    assert got.requests == 4
    assert Window.after_warmup(3, 4) == Window(3 * S, 7 * S)


def test_a_window_without_arrivals_is_refused() -> None:
    with pytest.raises(ValueError, match="no request arrives between 50 s and 60 s"):
        summary([request(0, MS, MS)], window=Window(50 * S, 60 * S))


def test_records_of_another_trace_are_refused() -> None:
    records, trace = make([request(0, MS, MS)])
    with pytest.raises(ValueError, match="0 records for 1 requests"):
        summarise(records[:0], trace, Window(0, S), pools={"mixed": 1}, gpus=1)


def test_delays_are_in_seconds_and_tpot_is_per_token_after_the_first() -> None:
    got = summary([request(0, 250 * MS, 100 * MS, output=11)])
    assert got.ttft.p50 == pytest.approx(0.25)
    assert got.tpot.p99 == pytest.approx(0.010)
    assert got.e2e.p90 == pytest.approx(0.35)


def test_quantiles_are_values_that_occurred() -> None:
    values = np.arange(1.0, 101.0)
    assert Quantiles.of(values) == Quantiles(p50=50, p90=90, p99=99, p999=100)
    assert math.isnan(Quantiles.of(np.empty(0)).p50)


def test_goodput_is_split_by_class_and_by_family() -> None:
    got = summary(
        [
            request(0, MS, MS, slo=0, family=0),
            request(1, S, MS, slo=0, family=1),
            request(2, MS, MS, slo=1, family=1),
        ]
    )
    assert got.by_class["tight"].goodput == 0.5 and got.by_class["loose"].goodput == 1.0
    assert got.by_family["chat"].goodput == 1.0 and got.by_family["document"].goodput == 0.5


def test_goodput_never_falls_when_the_targets_widen() -> None:
    rng = np.random.default_rng(0)
    rows = [request(k, int(rng.integers(1, 400)) * MS, int(rng.integers(1, 400)) * MS) for k in range(50)]
    got = summary(rows)
    values = list(got.scaled.values())
    assert values == sorted(values) and list(got.scaled) == [
        "0.5",
        "0.75",
        "1",
        "1.25",
        "1.5",
        "2",
        "2.5",
        "3",
    ]
    assert got.scaled["1"] == got.goodput and got.beyond_3x == pytest.approx(1 - got.scaled["3"])


def test_a_scale_halves_a_target_downwards() -> None:
    records, trace = make(
        [request(0, 5, 0, output=1, ttft_target=10), request(0, 6, 0, output=1, ttft_target=11)]
    )
    assert met_targets(records, trace, quarters=2).tolist() == [True, False]


def test_balance_is_even_when_every_instance_gets_the_same() -> None:
    even = pool_balance(np.array([0, 1, 2, 3]), np.array([5, 5, 5, 5]), 4)
    assert (even.count_cv, even.count_max, even.token_cv, even.token_max) == (0, 1, 0, 1)


def test_balance_of_tokens_differs_from_balance_of_counts() -> None:
    skewed = pool_balance(np.array([0, 1]), np.array([300, 100]), 2)
    assert skewed.count_cv == 0
    assert skewed.token_cv == pytest.approx(0.5) and skewed.token_max == pytest.approx(1.5)


def test_an_idle_instance_counts_and_a_rejected_request_does_not() -> None:
    got = pool_balance(np.array([0, 0, -1]), np.array([1, 1, 9]), 2)
    assert got.count_max == pytest.approx(2.0) and got.token_cv == pytest.approx(1.0)


def test_the_p99_gap_is_exact_for_an_even_pace_with_one_stall() -> None:
    # 99 gaps of 10 ms and one stall of a second: the 99th of 100 gaps is 10 ms.
    rows = [request(0, MS, 99 * 10 * MS + S, output=101, max_stall=S)]
    assert inter_token_p99(*make(rows)) == pytest.approx(0.010)
    # With two such stalls in two short requests more than one gap in a hundred is a stall.
    rows += [request(0, MS, S, output=2, max_stall=S)]
    assert inter_token_p99(*make(rows)) == pytest.approx(1.0)


def test_gaps_of_requests_that_never_finished_are_left_out() -> None:
    rows = [request(0, MS, 20 * MS, output=3, status=FAILED), request(0, MS, 0, output=1)]
    assert math.isnan(inter_token_p99(*make(rows)))


def test_the_longest_stall_and_the_throughput_per_gpu() -> None:
    got = summary([request(0, MS, MS, max_stall=3 * S), request(1, MS, MS)], window=Window(0, 10 * S))
    assert got.max_stall == 3.0
    assert got.goodput_per_gpu == pytest.approx(2 / 10 / 6)


def test_slowdown_compares_with_the_request_alone() -> None:
    records, trace = make([request(0, 100 * MS, 100 * MS), request(1, 100 * MS, 300 * MS)])
    got = summarise(
        records,
        trace,
        Window(0, S),
        pools={"mixed": 1},
        gpus=1,
        alone=np.array([100 * MS, 100 * MS]),
        feasible=np.array([True, False]),
    )
    assert got.slowdown.p50 == pytest.approx(2.0) and got.slowdown_mean == pytest.approx(3.0)
    assert got.ceiling == 0.5


def test_segments_add_up_to_the_whole() -> None:
    rows = [request(t * S, MS if t % 3 else S, MS) for t in range(35)]
    got = summary(rows, window=Window(5 * S, 35 * S))
    assert got.segment_requests == (10, 10, 10)
    assert sum(got.segment_met) == got.met


def test_a_summary_survives_its_json_with_infinite_and_missing_numbers() -> None:
    got = summary([request(0, MS, 0, output=1, status=FAILED)])
    assert math.isinf(got.e2e.p50) and math.isnan(got.tpot.p50) and math.isnan(got.ceiling)
    again = Summary.model_validate_json(got.model_dump_json())
    assert again.model_dump_json() == got.model_dump_json()
    assert math.isinf(again.e2e.p50) and math.isnan(again.tpot.p50)


def test_a_row_is_flat_and_names_its_units() -> None:
    row = summary([request(0, MS, MS)]).row()
    assert {"goodput", "goodput_tight", "goodput_chat", "ttft_p99_s", "goodput_at_0.5x"} <= set(row)
    assert {"prefill_count_cv", "decode_token_max", "goodput_per_gpu_per_s", "max_stall_s"} <= set(row)
    assert all(isinstance(value, (int, float)) for value in row.values())


def test_statuses_are_those_of_the_records() -> None:
    assert (FINISHED, FAILED, REJECTED) == (0, 1, 2)
