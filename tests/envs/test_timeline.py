"""Timelines: what a viewer shows of a run, held against its records."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from disaggroute.envs.cluster import Cluster, ClusterEvent
from disaggroute.envs.records import FAILED, FINISHED, RECORD, REJECTED
from disaggroute.envs.simulator import simulate
from disaggroute.envs.timeline import instance_names, write_timeline
from disaggroute.envs.trace import MAX_TARGET_PS, Trace
from disaggroute.training.metrics import met_targets

from ..differential.cases import Case, cases, random_case
from ..differential.scenarios import assign, engine, requests
from ..policies import scenes
from .viewer import Shown, show

Records = npt.NDArray[Any]
Span = tuple[str, str, int, int, int]
"""Process, phase, start, end, request."""


def written(records: Records, trace: Trace, cluster: Cluster, **options: Any) -> bytes:
    stream = io.BytesIO()
    write_timeline(stream, records, trace, instance_names(cluster), **options)
    return stream.getvalue()


def ran(cluster: Cluster, trace: Trace, *pairs: tuple[int, int], **options: Any) -> Shown:
    records = simulate(trace, cluster, assignment=assign(*pairs), predictor=trace.output).records
    return show(written(records, trace, cluster, **options))


def spans(shown: Shown) -> set[Span]:
    return {(one.process, one.name, one.start, one.end, one.request) for one in shown.slices}


def series(shown: Shown, process: str, name: str) -> list[tuple[int, int]]:
    """Times and values of a series, where it changes."""
    values = shown.counters[process, name]
    return [pair for k, pair in enumerate(values) if k == 0 or pair[1] != values[k - 1][1]]


TWO = requests((0, 8, 3), (5, 4, 2))
PLAIN = Cluster(prefill=(engine(name="a"),), decode=(engine(name="b"),))
PREFILL, DECODE = "prefill 0 (a)", "decode 0 (b)"


def test_two_requests_on_paper() -> None:
    # Prefill: 20 + 8 ps, then 20 + 4. Two blocks leave in 6 ps and travel for 5, one in 3 and 5. A decode step lasts
    # 10 ps, so that from 39 on steps end at 49, 59, …: the second prompt, done at 52, waits for the boundary at 59.
    shown = ran(PLAIN, TWO, (0, 0), (0, 0))
    assert spans(shown) == {
        (PREFILL, "prefill", 0, 28, 0),
        (PREFILL, "held", 28, 39, 0),
        (PREFILL, "transfer", 28, 39, 0),
        (DECODE, "transfer", 28, 39, 0),
        (DECODE, "join", 39, 49, 0),
        (DECODE, "decode", 49, 69, 0),
        (PREFILL, "queue", 5, 28, 1),
        (PREFILL, "prefill", 28, 52, 1),
        (PREFILL, "held", 52, 67, 1),
        (PREFILL, "transfer", 59, 67, 1),
        (DECODE, "offered", 52, 59, 1),
        (DECODE, "transfer", 59, 67, 1),
        (DECODE, "join", 67, 79, 1),
        (DECODE, "decode", 79, 89, 1),
    }
    assert [(a.name, a.request, b.name, b.request) for a, b in shown.arrows] == [
        ("prefill", 0, "transfer", 0),
        ("prefill", 1, "offered", 1),
    ]
    assert series(shown, "router", "requests") == [(0, 1), (5, 2), (69, 1), (89, 0)]
    assert series(shown, PREFILL, "queued") == [(0, 0), (5, 1), (28, 0)]
    assert series(shown, PREFILL, "held") == [(0, 0), (28, 1), (39, 0), (52, 1), (67, 0)]
    assert series(shown, PREFILL, "tokens") == [(0, 8), (28, 12), (39, 4), (67, 0)]
    assert series(shown, DECODE, "joining") == [(28, 0), (39, 1), (49, 0), (67, 1), (79, 0)]
    assert series(shown, DECODE, "decoding") == [(28, 0), (49, 1), (69, 0), (79, 1), (89, 0)]
    # 8 tokens, of two more at 49 and 69 half are there at 59; then the second request's 4 and one at its end.
    assert series(shown, DECODE, "tokens") == [(28, 8), (59, 13), (67, 14), (69, 4), (89, 0)]
    assert shown.markers == []


def test_overlapping_requests_lie_on_lanes_and_a_free_lane_is_taken_again() -> None:
    # The third comes at the instant at which the first leaves the prefill instance.
    shown = ran(PLAIN, requests((0, 8, 1), (5, 4, 1), (39, 4, 1)), (0, 0), (0, 0), (0, 0))
    lanes = {one.request: one.thread for one in shown.slices if one.process == PREFILL}
    assert lanes == {0: "lane 001", 1: "lane 002", 2: "lane 001"}


def test_what_is_shown_of_a_request() -> None:
    trace = replace(requests((5 * 10**9, 8, 3), slo=[1]), families=('a "b"',))
    slow = engine(base_prefill=2 * 10**9, base_decode=3 * 10**9, per_token=0)
    shown = ran(Cluster(prefill=(slow,), decode=(slow,)), trace, (0, 0))
    for name in ("prefill", "decode"):
        (one,) = [one for one in shown.slices if one.name == name]
        shown_of = {key: float(value) if "_ms" in key else value for key, value in one.arguments.items()}
        assert shown_of == {
            "request": 0,
            "class": "loose",
            "family": 'a "b"',
            "p": 8,
            "o": 3,
            "predicted": 3,
            "prefill": 0,
            "decode": 0,
            "ttft_ms": 5.0,
            "ttft_target_ms": 0.0,
            "tpot_ms": 3.0,
            "tpot_target_ms": 0.0,
            "status": "finished",
            "met": False,
            "preemptions": 0,
        }


def test_misses_are_marked_where_the_request_was_when_they_became_certain() -> None:
    # TTFT passes as the prefill ends, and in the queue; TPOT (7 ps per token) while decoding.
    trace = replace(TWO, ttft_target=np.array([28, 10]), tpot_target=np.array([7, 100]))
    shown = ran(PLAIN, trace, (0, 0), (0, 0))
    assert [(m.process, m.inside and m.inside.name, m.name, m.time, m.request) for m in shown.markers] == [
        (PREFILL, "queue", "TTFT missed", 15, 1),
        (DECODE, "transfer", "TTFT missed", 28, 0),
        (DECODE, "decode", "TPOT missed", 63, 0),
    ]


def test_a_failure_ends_what_the_request_was_in() -> None:
    cluster = replace(PLAIN, events=(ClusterEvent(55, 1, "kill"),))
    shown = ran(cluster, TWO, (0, 0), (0, 0))
    assert (DECODE, "decode", 49, 55, 0) in spans(shown)
    assert (DECODE, "offered", 52, 55, 1) in spans(shown)
    assert (PREFILL, "held", 52, 55, 1) in spans(shown)
    marks = [(m.process, m.inside and m.inside.name, m.name, m.time, m.request) for m in shown.markers]
    assert sorted(marks) == [(DECODE, "decode", "failed", 55, 0), (DECODE, "offered", "failed", 55, 1)]


def test_a_request_that_is_lost_as_its_prefill_ends_is_marked_on_the_prefill_instance() -> None:
    cluster = replace(PLAIN, events=(ClusterEvent(20, 1, "kill"),))
    shown = ran(cluster, requests((0, 8, 3)), (0, 0))
    assert spans(shown) == {(PREFILL, "prefill", 0, 28, 0)}
    assert [(m.process, m.inside and m.inside.name, m.name, m.time) for m in shown.markers] == [
        (PREFILL, "prefill", "failed", 28)
    ]
    assert shown.arrows == []


def test_rejected_and_re_routed_requests_are_marked_at_the_router() -> None:
    events = (ClusterEvent(30, 1, "kill"), ClusterEvent(40, 1, "return"), ClusterEvent(110, 0, "drain"))
    cluster = replace(PLAIN, decode=(engine(name="b"),) * 2, events=events, on_kill="reroute")
    trace = requests((0, 8, 3), (120, 4, 2))
    result = simulate(trace, cluster, assignment=assign((0, 0), (0, 0)), predictor=trace.output, log_decisions=True)
    routed = np.array([result.decisions["time"].max(), -1])
    shown = show(written(result.records, trace, cluster, routed=routed))
    assert [(m.process, m.name, m.time, m.request) for m in shown.markers] == [
        ("router", "re-routed", 30, 0),
        ("router", "rejected", 120, 1),
    ]
    assert {one.request for one in shown.slices} == {0}
    assert min(one.start for one in shown.slices) == 30  # its last attempt


def test_where_the_first_token_comes_from_prefill_decoding_starts_with_the_end_of_the_transfer() -> None:
    cluster = replace(PLAIN, first_token="prefill")
    shown = ran(cluster, requests((0, 8, 3), (0, 4, 1)), (0, 0), (0, 0))
    # Both prompts share a step of 20 + 12 ps; the second request ends with it.
    assert spans(shown) == {
        (PREFILL, "prefill", 0, 32, 0),
        (PREFILL, "held", 32, 43, 0),
        (PREFILL, "transfer", 32, 43, 0),
        (DECODE, "transfer", 32, 43, 0),
        (DECODE, "decode", 43, 63, 0),
        (PREFILL, "prefill", 0, 32, 1),
    }
    assert len(shown.arrows) == 1


def test_an_aggregated_cluster_has_one_process_per_instance() -> None:
    cluster = Cluster(mixed=(engine(name="a"),) * 2)
    shown = ran(cluster, requests((0, 8, 3), (1, 4, 1)), (0, 0), (1, 1))
    assert spans(shown) == {
        ("mixed 0 (a)", "prefill", 0, 28, 0),
        ("mixed 0 (a)", "decode", 28, 48, 0),
        ("mixed 1 (a)", "prefill", 1, 25, 1),
    }
    assert series(shown, "mixed 0 (a)", "tokens") == [(0, 8), (48, 0)]
    assert shown.arrows == []


def test_waiting_for_the_egress_server_is_shown_inside_the_transfer() -> None:
    # Prompts that end in one step are pulled at once, and the second pull waits for the first.
    shown = ran(PLAIN, requests((0, 8, 1), (0, 8, 1)), (0, 0), (0, 0))
    assert (DECODE, "egress queue", 36, 42, 1) in spans(shown)
    assert (DECODE, "transfer", 36, 53, 1) in spans(shown)
    assert (PREFILL, "transfer", 42, 53, 1) in spans(shown)


def test_a_window_keeps_whole_requests_and_cuts_the_counters() -> None:
    trace = requests((0, 8, 3), (5, 4, 2), (200, 4, 2))
    whole = ran(PLAIN, trace, (0, 0), (0, 0), (0, 0))
    shown = ran(PLAIN, trace, (0, 0), (0, 0), (0, 0), window=(70, 80))
    assert spans(shown) == {span for span in spans(whole) if span[-1] == 1}
    assert series(shown, DECODE, "joining") == [(70, 1), (79, 0)]
    assert series(shown, DECODE, "decoding") == [(70, 0), (79, 1)]
    assert series(shown, PREFILL, "held") == [(70, 0)]
    assert shown.counters["router", "requests"] == [(70, 1)]


def test_the_same_run_gives_the_same_bytes() -> None:
    case = random_case(7)
    records = run_of(case, case.trace)[0]
    assert written(records, case.trace, case.cluster) == written(records, case.trace, case.cluster)


def test_a_run_without_requests_is_a_file_without_slices() -> None:
    empty = requests()
    shown = show(written(np.zeros(0, RECORD), empty, PLAIN))
    assert shown.slices == [] and not shown.counters


def test_the_file_is_streamed() -> None:
    class Pieces(io.BytesIO):
        sizes: list[int]

        def write(self, content: Any) -> int:
            self.sizes.append(len(content))
            return super().write(content)

    stream, trace, cluster = Pieces(), scenes.trace(3_000), scenes.cluster()
    stream.sizes = []
    pairs = (np.arange(3_000) % 2, np.arange(3_000) % 4)
    records = simulate(trace, cluster, assignment=pairs, predictor=trace.output).records
    assert write_timeline(stream, records, trace, instance_names(cluster)) == len(show(stream.getvalue()).events)
    assert len(stream.sizes) > 5 and max(stream.sizes) < 1.1 * 2**20


# --- random runs -------------------------------------------------------------------------------------------------


def run_of(case: Case, trace: Trace) -> tuple[Records, npt.NDArray[np.int64]]:
    """Records of a case, and when each request was decided about last."""
    result = simulate(
        trace, case.cluster, assignment=case.assignment, predictor=case.predicted, log_decisions=True
    )
    routed = np.full(len(trace), -1, np.int64)
    routed[result.decisions["request"]] = result.decisions["time"]
    return result.records, routed


def missing_some(case: Case) -> Trace:
    """The trace with targets that about half of the requests miss."""
    records, _ = run_of(case, case.trace)
    ttft = np.where(records["first_token"] >= 0, records["first_token"], records["end"]) - records["arrival"]
    gaps = np.maximum(case.trace.output - 1, 1)
    tpot = np.where(records["status"] == FINISHED, records["last_token"] - records["first_token"], 0) // gaps
    most = MAX_TARGET_PS // int(case.trace.output.max())
    targets = [np.full(len(ttft), min(int(np.median(delay)), most), np.int64) for delay in (ttft, tpot)]
    return replace(case.trace, ttft_target=targets[0], tpot_target=targets[1])


def phases_of(row: Any, cluster: Cluster, routed: int) -> dict[str, list[tuple[str, int, int]]]:
    """What the record of one request says of each instance, without phases of no length."""
    end = int(row["end"])

    def reached(*names: str) -> list[int]:
        return [int(row[name]) if row[name] >= 0 else end for name in names]

    start = max(int(row["arrival"]), routed)
    if row["status"] == REJECTED:
        return {}
    if cluster.aggregated:
        times = [start, *reached("prefill_start", "prefill_end"), end]
        found = {f"mixed {row['decode']} (custom)": (("queue", "prefill", "decode"), times)}
    else:
        times = [start, *reached("prefill_start", "prefill_end", "transfer_end")]
        found = {f"prefill {row['prefill']} (custom)": (("queue", "prefill", "held"), times)}
        if row["prefill_end"] >= 0:
            times = [int(row["prefill_end"]), *reached("reserve", "transfer_end", "first_token"), end]
            if row["first_token"] == row["prefill_end"]:
                times[3] = times[2]  # the first token came from prefill
            found[f"decode {row['decode']} (custom)"] = (("offered", "transfer", "join", "decode"), times)
    spans_of = {
        process: [(name, a, b) for name, a, b in zip(names, times, times[1:], strict=False) if b > a]
        for process, (names, times) in found.items()
    }
    return {process: listed for process, listed in spans_of.items() if listed}


@given(cases())
def test_every_request_has_the_phases_of_its_record(case: Case) -> None:
    records, routed = run_of(case, case.trace)
    shown = show(written(records, case.trace, case.cluster, routed=routed))
    found: dict[tuple[int, str], list[tuple[str, int, int]]] = {}
    for one in shown.slices:
        if one.depth == 0:
            found.setdefault((one.request, one.process), []).append((one.name, one.start, one.end))
        else:
            assert one.name in ("transfer", "egress queue")
    expected = {
        (k, process): listed
        for k, row in enumerate(records)
        for process, listed in phases_of(row, case.cluster, int(routed[k])).items()
    }
    assert found == expected
    both = {k for k, process in expected if process.startswith("decode")}
    assert {a.request for a, _ in shown.arrows} == both
    for a, b in shown.arrows:
        assert a.name == "prefill" and a.process.startswith("prefill")
        assert b.request == a.request and (b.name, b.start, b.end) == expected[b.request, b.process][0]


COUNTS = {
    **{"queue": "queued", "prefill": "in prefill", "held": "held", "offered": "offered"},
    **{"transfer": "in transit", "join": "joining", "decode": "decoding"},
}


@given(cases())
def test_counters_count_the_slices_and_end_at_nothing(case: Case) -> None:
    records, routed = run_of(case, case.trace)
    shown = show(written(records, case.trace, case.cluster, routed=routed))
    outer = [one for one in shown.slices if one.depth == 0]
    for (process, name), values in shown.counters.items():
        assert values[-1][1] == 0
        if process == "router":
            going = [(int(row["arrival"]), int(row["end"])) for row in records]
        elif name == "tokens":
            assert all(value >= 0 for _, value in values)
            continue
        else:
            going = [(o.start, o.end) for o in outer if o.process == process and COUNTS[o.name] == name]
        assert [value for _, value in values] == [sum(a <= time < b for a, b in going) for time, _ in values]


@given(cases())
def test_the_tokens_of_a_prefill_instance_fit_its_cache(case: Case) -> None:
    records, routed = run_of(case, case.trace)
    shown = show(written(records, case.trace, case.cluster, routed=routed))
    for index, spec in enumerate(case.cluster.prefill):
        tokens = [value for _, value in shown.counters.get((f"prefill {index} (custom)", "tokens"), [])]
        assert max(tokens, default=0) <= spec.num_blocks * spec.block_size


@given(cases())
def test_exactly_the_requests_without_a_marker_met_their_targets(case: Case) -> None:
    trace = missing_some(case)
    records, routed = run_of(case, trace)
    shown = show(written(records, trace, case.cluster, routed=routed))
    told = [(marker.name, marker.request) for marker in shown.markers]
    assert len(set(told)) == len(told)
    marked = {request for name, request in told if name != "re-routed"}
    met = met_targets(records, trace)
    assert marked == set(np.flatnonzero(~met).tolist())
    for marker in shown.markers:
        if marker.process != "router":
            assert marker.inside is not None and marker.inside.request == marker.request
        elif marker.name == "TTFT missed":
            assert marker.time < routed[marker.request]
    for name, status in (("failed", FAILED), ("rejected", REJECTED)):
        assert sorted(m.request for m in shown.markers if m.name == name) == np.flatnonzero(
            records["status"] == status
        ).tolist()


# --- refusals ----------------------------------------------------------------------------------------------------


def finished() -> Records:
    return simulate(TWO, PLAIN, assignment=assign((0, 0), (0, 0)), predictor=TWO.output).records


def test_records_of_another_trace_are_refused() -> None:
    with pytest.raises(ValueError, match="trace: 2 records for 1 requests; they must match"):
        written(finished(), requests((0, 8, 3)), PLAIN)


def test_a_run_that_goes_on_is_refused() -> None:
    records = finished()
    records["end"][1] = -1
    with pytest.raises(ValueError, match="trace: request 1 has not ended; a timeline needs all of them to have"):
        written(records, TWO, PLAIN)


def test_an_instance_without_a_name_is_refused() -> None:
    records = finished()
    records["decode"][1] = 3
    with pytest.raises(ValueError, match="trace: a request went to decode instance 3; names has 1 of them"):
        written(records, TWO, PLAIN)


def test_roles_that_make_no_cluster_are_refused() -> None:
    with pytest.raises(ValueError, match="names has the roles decode; it must have prefill and decode, or mixed"):
        write_timeline(io.BytesIO(), finished(), TWO, {"decode": ["d"]})


@pytest.mark.parametrize("window", [(5, 5), (-1, 5)])
def test_an_empty_window_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"window is -?\d to 5 ps; it must start at 0 or later and end after that"):
        written(finished(), TWO, PLAIN, window=window)
