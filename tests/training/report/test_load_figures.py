"""Balance over time and the timeline of a burst."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disaggroute.training.description import Description
from disaggroute.training.picture import drawing
from disaggroute.training.report.balance import draw_balance, pool_loads, window_edges
from disaggroute.training.report.burst import Burst
from disaggroute.training.report.material import Material
from disaggroute.training.report.timeline import BINS, draw_timeline, pool_timelines

from .hand_made import SECOND, request, run


def described(material: Material, **changes: object) -> Description:
    return material.results.description.model_copy(update=changes)


@pytest.mark.parametrize(
    ("duration", "windows", "width"), [(300.0, 30, 10.0), (7200.0, 180, 40.0), (0.5, 5, 0.1), (30.0, 5, 6.0)]
)
def test_windows_of_ten_seconds_unless_there_would_be_too_many_or_too_few(
    material: Material, duration: float, windows: int, width: float
) -> None:
    edges = window_edges(described(material, warmup_s=5.0, duration_s=duration))
    assert len(edges) == windows + 1
    assert (edges[0], edges[-1]) == (5 * SECOND, round((5 + duration) * SECOND))
    assert np.diff(edges) / SECOND == pytest.approx(width)


def test_prefill_carries_a_request_until_its_prefill_has_ended_and_decode_from_then_on(material: Material) -> None:
    description = described(material, warmup_s=0.0, duration_s=50.0, pools={"prefill": 2, "decode": 2})
    records = run(request(10, 15, 20, 22, 25, 40, prefill=1, decode=0, prompt=300, output=50))
    loads = pool_loads(records, description)
    assert loads["prefill"].requests == pytest.approx(np.array([[0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]), abs=1e-9)
    assert loads["prefill"].tokens[1] == pytest.approx([0, 300, 0, 0, 0], abs=1e-9)
    assert loads["decode"].requests == pytest.approx(np.array([[0, 0, 1, 1, 0], [0, 0, 0, 0, 0]]), abs=1e-9)
    assert loads["decode"].tokens[0] == pytest.approx([0, 0, 350, 350, 0], abs=1e-9)


def test_a_mixed_instance_carries_a_request_all_its_life(material: Material) -> None:
    description = described(material, warmup_s=0.0, duration_s=50.0, pools={"mixed": 1})
    row = request(10, 15, 20, first_token=20, last_token=40, end=40, prompt=300, output=50)
    loads = pool_loads(run(row), description)
    assert list(loads) == ["mixed"]
    assert loads["mixed"].requests[0] == pytest.approx([0, 1, 1, 1, 0], abs=1e-9)
    assert loads["mixed"].tokens[0] == pytest.approx([0, 350, 350, 350, 0], abs=1e-9)


BURST = Burst(0, 24 * SECOND, "it is all there is")
ROWS = (
    request(0, 2, 4, 5, 6, 11, prefill=0, decode=1, ttft_target=1.0),
    request(3, 4, 5, 5.5, 6, 20, prefill=1, decode=1, ttft_target=9.0),
    request(8, 8, 9, 9, 9.5, 10, prefill=1, decode=0, ttft_target=9.0),
)


def at(counts: np.ndarray, second: float) -> float:
    return float(counts[int(second / 24 * BINS)])


def test_a_timeline_counts_who_is_served_and_who_waits_on_every_instance() -> None:
    prefill, decode = pool_timelines(run(*ROWS), {"prefill": 2, "decode": 2}, BURST)
    assert prefill.busy.shape == decode.waiting.shape == (2, BINS)
    assert [at(prefill.waiting[0], t) for t in (0.5, 1.5, 2.5)] == pytest.approx([1, 1, 0])
    assert [at(prefill.busy[0], t) for t in (1.5, 2.5, 4.5)] == pytest.approx([0, 1, 0])
    assert [at(decode.waiting[1], t) for t in (3.5, 4.5, 5.2, 5.7)] == pytest.approx([0, 1, 1, 0])
    assert [at(decode.busy[1], t) for t in (4.5, 5.2, 7, 15, 21)] == pytest.approx([0, 1, 2, 1, 0])
    assert float(decode.held.max()) == pytest.approx(2)


def test_a_timeline_marks_misses_at_their_arrival_where_the_time_was_lost() -> None:
    prefill, decode = pool_timelines(run(*ROWS), {"prefill": 2, "decode": 2}, BURST)
    assert [times.tolist() for times in prefill.missed] == [[0.0], []]
    assert [times.tolist() for times in decode.missed] == [[], [3.0]]


def test_in_a_mixed_pool_every_miss_is_marked() -> None:
    rows = [row | {"decode": row["prefill"], "transfer_end": -1} for row in ROWS]
    (mixed,) = pool_timelines(run(*rows), {"mixed": 2}, BURST)
    assert [times.tolist() for times in mixed.missed] == [[0.0], [3.0]]


def test_counts_of_a_real_run_add_up_to_what_was_in_flight(material: Material) -> None:
    records = material.records["round-robin"]
    burst = Burst(5 * SECOND, 45 * SECOND, "it is the window")
    held = sum(t.held.sum(axis=0) for t in pool_timelines(records, material.results.description.pools, burst))
    edges = np.linspace(burst.start, burst.end, BINS + 1)
    rows = records.records
    overlap = np.minimum(rows["end"][:, None], edges[1:]) - np.maximum(rows["arrival"][:, None], edges[:-1])
    expected = np.maximum(overlap, 0).sum(axis=0) / np.diff(edges)
    assert held == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_balance_figure_has_a_row_per_policy_and_two_columns_per_pool(material: Material) -> None:
    with drawing():
        figure = draw_balance(material)
    assert len(figure.axes) == 4 * len(material.labels)
    words = [text.get_text() for axes in figure.axes[:4] for text in axes.texts]
    assert [word for word in words if not word.startswith("CV")] == [
        f"{role}: {what}" for role in ("prefill", "decode") for what in ("requests", "1,000 tokens")
    ]
    assert [figure.axes[4 * k].get_title(loc="left") for k in range(3)] == list(material.labels)


def test_the_timeline_figure_has_a_column_per_policy_and_tells_its_misses(material: Material) -> None:
    with drawing():
        figure = draw_timeline(material)
    columns = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(columns) == len(material.labels)
    label = columns[0].get_title(loc="left")
    assert label.startswith("least-loaded\n") and label.endswith("missed")
    assert len(figure.axes) == len(material.labels) * (1 + 1 + 2)
    records = material.records["least-loaded"]
    missed = int((records.measured & ~records.met).sum())
    marked = sum(int(text.get_text()) for axes in figure.axes[1:4] for text in axes.texts)
    assert marked == missed == int(label.split("\n")[1].split()[0])


def test_the_timeline_counts_the_requests_that_the_table_counts_though_some_were_sent_late(material: Material) -> None:
    label, records = next(iter(material.records.items()))
    late = np.zeros(len(records.due), np.int64)
    late[np.flatnonzero(records.measured)[-1]] = 10**14  # Sent long after the window.
    changed = replace(records, trace=replace(records.trace, arrival=records.trace.arrival + late))
    with drawing():
        figures = [draw_timeline(replace(material, records={label: each})) for each in (records, changed)]
    before, after = (figure.axes[0].get_title(loc="left") for figure in figures)
    assert before == after and f" of {int(records.measured.sum())} missed" in after


def test_a_large_pool_is_drawn_as_one_map(material: Material) -> None:
    results = replace(material.results, description=described(material, pools={"prefill": 1, "decode": 40}))
    with drawing():
        figure = draw_timeline(replace(material, results=results))
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == len(material.labels) and len(figure.axes) == len(material.labels) * 3
    assert maps[0].images[0].get_array().shape == (40, BINS)
