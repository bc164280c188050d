"""Delays against targets: the curves and what they count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.trace import SLO_CLASSES
from disaggroute.training.picture import drawing
from disaggroute.training.report.delays import (
    draw_delays,
    later_than,
    target_words,
    tpot_delays,
    ttft_delays,
)
from disaggroute.training.report.material import Material

from .hand_made import request, run

MIXED = run(
    request(0, 0, 0, 0, 0.5, 1.5, ttft_target=0.4),
    request(1, 1, 1, 1, 1.25, 3.25, slo=1, output=5),
    request(2, 2, 2, 2, 4.0, 4.0, output=1),
    request(3, 3, 3, status="failed", end=4),
    request(4, status="rejected", decided=-1, end=4),
    request(5, 5, 5, 5, 5.1, status="failed", end=6),
)


def test_ttft_is_infinite_without_a_first_token_and_each_class_counts_alone() -> None:
    tight = ttft_delays(MIXED, 0)
    assert tight.values.tolist() == pytest.approx([0.5, 2.0, np.inf, np.inf, 0.1])
    assert tight.targets.tolist() == pytest.approx([0.4, 1.0, 1.0, 1.0, 1.0])
    assert ttft_delays(MIXED, 1).values.tolist() == pytest.approx([0.25])


def test_tpot_leaves_out_single_tokens_and_is_infinite_for_failures() -> None:
    assert tpot_delays(MIXED, 0).values.tolist() == pytest.approx([0.1, np.inf, np.inf, np.inf])
    assert tpot_delays(MIXED, 1).values.tolist() == pytest.approx([0.5])


def test_what_arrives_before_the_window_does_not_count() -> None:
    rows = [request(t, t, t, t, t + 1, t + 2) for t in range(4)]
    assert len(ttft_delays(run(*rows, warmup=2), 0).values) == 2


def test_a_curve_tells_the_share_that_waits_longer_than_each_time() -> None:
    times, share = later_than(np.array([3.0, 1.0, np.inf, 2.0]))
    assert times.tolist() == [1, 2, 3] and share.tolist() == [0.75, 0.5, 0.25]


def test_a_curve_of_nothing_but_failures_has_no_points() -> None:
    times, share = later_than(np.full(5, np.inf))
    assert len(times) == len(share) == 0


@given(st.lists(st.floats(0.001, 100) | st.just(np.inf), min_size=1, max_size=500), st.integers(2, 40))
def test_a_thinned_curve_keeps_both_ends_and_lies_on_the_full_one(values: list[float], points: int) -> None:
    sample = np.array(values)
    times, share = later_than(sample, points)
    assert len(times) <= points + 2 or len(times) == np.isfinite(sample).sum()
    full = np.sort(sample[np.isfinite(sample)])
    if len(full):
        assert times[0] == full[0] and times[-1] == full[-1]
        assert share[-1] == pytest.approx(np.isinf(sample).mean())
    ends = np.append(times[1:] != times[:-1], True) if len(times) else []
    for time, part in zip(times[ends], share[ends], strict=True):
        assert part >= (sample > time).mean() - 1e-12


def test_targets_are_told_by_class_and_as_a_span_where_they_differ() -> None:
    assert target_words({"a": MIXED}) == (
        "; tight: TTFT 0.4 to 1 s, TPOT 100 ms; loose: TTFT 1 s, TPOT 100 ms"
    )
    assert target_words({}) == ""


def test_a_row_per_class_shows_both_delays_in_seconds_with_their_targets(material: Material) -> None:
    with drawing():
        figure = draw_delays(material)
    panels = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"{what}, class {name}" for name in SLO_CLASSES for what in ("TTFT", "TPOT")
    ]
    assert {axes.get_xlabel() for axes in panels} == {"TTFT, s", "TPOT, s per token after the first"}
    assert panels[0].texts[0].get_text() == "target 0.175 s"


def test_targets_that_differ_turn_delays_into_multiples(material: Material) -> None:
    from dataclasses import replace

    with drawing():
        figure = draw_delays(replace(material, records={"least-loaded": MIXED}))
    first, second = figure.axes[:2]
    assert first.get_xlabel() == "TTFT ÷ the request's target" and first.texts[0].get_text() == "target"
    assert second.get_xlabel() == "TPOT, s per token after the first"
