"""Goodput: per policy, against the scale of the targets, by class and family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.envs.window import Window
from disaggroute.training.evaluation import evaluate
from disaggroute.training.picture import drawing
from disaggroute.training.report.goodput import draw_goodput
from disaggroute.training.report.groups import draw_groups, groups, in_segments
from disaggroute.training.report.material import Material, gather
from disaggroute.training.report.slo_scale import (
    band,
    difference_at_scales,
    draw_slo_scale,
    goodput_at_scales,
)
from disaggroute.training.results import Results, read_results
from disaggroute.training.statistics import Estimate

from .hand_made import SECOND, request, run

EASY = ("least-loaded", "round-robin")


def only(results: Results, *labels: str, seeds: int | None = None) -> Results:
    """The same results with fewer policies or seeds."""
    runs = {label: results.runs[label][:seeds] for label in labels}
    return replace(results, runs=runs, seeds=results.seeds[:seeds])


def test_goodput_at_scale_one_is_the_goodput_and_never_falls_with_the_scale(material: Material) -> None:
    for line in material.comparison.lines:
        curve = goodput_at_scales(material.results, line.label)
        assert list(curve) == [0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3]
        assert curve[1.0].mean == pytest.approx(line.goodput.mean)
        means = [estimate.mean for estimate in curve.values()]
        assert means == sorted(means)


def test_differences_at_a_scale_are_paired_by_seed(material: Material) -> None:
    mine, other = (goodput_at_scales(material.results, label) for label in EASY)
    curve = difference_at_scales(material.results, *EASY)
    for scale, estimate in curve.items():
        pairs = zip(mine[scale].values, other[scale].values, strict=True)
        assert estimate.values == pytest.approx([a - b for a, b in pairs])


def test_without_an_interval_the_band_spans_the_values() -> None:
    assert band(Estimate(0.5, None, None, (0.4, 0.6, 0.5))) == (0.4, 0.6)
    assert band(Estimate(0.5, 0.45, 0.55, (0.4, 0.6, 0.5))) == (0.45, 0.55)


def test_every_group_has_its_share_and_its_ceiling(material: Material) -> None:
    found = {(group.kind, group.name): group for group in groups(material)}
    assert list(found) == [
        ("class", "tight"),
        ("class", "loose"),
        *(("family", name) for name in ("chat", "document", "reasoning")),
    ]
    assert sum(group.requests for (kind, _), group in found.items() if kind == "class") == material.comparison.requests
    for line in material.comparison.lines:
        tight = found["class", "tight"]
        assert tight.goodput[line.label].mean == pytest.approx(line.tight)
        assert tight.goodput[line.label].has_interval
        assert line.tight <= tight.ceiling <= 1
    weighed = sum(
        group.requests * group.ceiling for (kind, _), group in found.items() if kind == "class"
    ) / material.comparison.requests
    assert weighed == pytest.approx(material.comparison.ceiling, abs=0.01)


def test_arrivals_and_hits_of_a_group_are_counted_in_segments_of_ten_seconds() -> None:
    rows = [
        request(1, 1, 1, 1, 1, 1, slo=1),
        request(6, 6, 6, 6, 6, 6),
        request(16, 16, 16, 16, 26, 26),
        request(17, 17, 17, 17, 17, 17),
        request(18, 18, 18, 18, 18, 18, slo=1, family=1),
    ]
    records = run(*rows, warmup=5, families=("a", "b"))
    window = Window(5 * SECOND, 26 * SECOND)
    assert in_segments(records, "class", "tight", window) == ([1, 2, 0], [1, 1, 0])
    assert in_segments(records, "class", "loose", window) == ([0, 1, 0], [0, 1, 0])
    assert in_segments(records, "family", "b", window) == ([0, 1, 0], [0, 1, 0])
    assert in_segments(records, "family", "unknown", window) == ([0, 0, 0], [0, 0, 0])


def test_a_request_that_was_sent_late_is_counted_in_the_segment_in_which_it_was_due() -> None:
    records = run(request(1, *[1.0] * 5), request(20.1, *[20.1] * 5, due=19.9))
    window = Window(0, 20 * SECOND)
    assert in_segments(records, "class", "tight", window) == ([1, 1], [1, 1])


def test_groups_of_one_real_trace_get_their_intervals_from_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.05},{50 + k * k % 900},{5 + k % 60}\n" for k in range(6_000))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    scenario = Scenario.make(workload=str(path), topology="1P1D", warmup_s=10)
    evaluate(scenario, ("round-robin",), range(1), out=tmp_path / "r", workers=1)
    material = gather(read_results(tmp_path / "r"))
    found = groups(material)
    assert [(group.kind, group.name) for group in found] == [("class", "tight"), ("class", "loose")]
    for group in found:
        estimate = group.goodput["round-robin"]
        assert estimate.low is not None and estimate.low <= estimate.mean <= estimate.high
    without = groups(replace(material, records={}))
    assert [g.goodput["round-robin"].mean for g in without] == pytest.approx(
        [g.goodput["round-robin"].mean for g in found]
    )
    assert not any(group.goodput["round-robin"].has_interval for group in without)


def test_the_goodput_figure_names_every_policy_and_the_baseline(material: Material) -> None:
    with drawing():
        figure = draw_goodput(material)
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == list(material.labels)
    assert right.get_xlabel() == "difference to round-robin (points)"
    means = {f"{line.goodput.mean:.3f}" for line in material.comparison.lines}
    assert {text.get_text() for text in left.texts} == means
    assert material.comparison.interval.split()[-1] in figure.get_suptitle()


def test_with_one_policy_there_is_nothing_to_compare_and_no_second_panel(material: Material) -> None:
    from disaggroute.training.comparison import compare

    results = only(material.results, "least-loaded", seeds=1)
    one = Material(results, compare(results), {}, {"least-loaded": material.styles["least-loaded"]})
    with drawing():
        assert [len(draw(one).axes) for draw in (draw_goodput, draw_slo_scale, draw_groups)] == [1, 1, 1]


def test_lines_over_the_scale_lie_at_the_means(material: Material) -> None:
    with drawing():
        figure = draw_slo_scale(material)
    lines = {line.get_color(): line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2}
    for label in material.labels:
        curve = goodput_at_scales(material.results, label)
        drawn = lines[material.styles[label].colour]
        assert np.asarray(drawn.get_ydata()) == pytest.approx([estimate.mean for estimate in curve.values()])
    assert figure.axes[1].get_ylabel() == "difference to round-robin (points)"


def test_the_group_figure_has_a_row_per_policy_in_every_group_and_its_ceiling(material: Material) -> None:
    with drawing():
        axes = draw_groups(material).axes[0]
    markers = [line for line in axes.get_lines() if line.get_marker() not in ("None", "")]
    assert len(markers) == len(groups(material)) * len(material.labels)
    assert len({float(line.get_ydata()[0]) for line in markers}) == len(markers)
    assert axes.get_yticklabels()[0].get_text().startswith("class tight\n")
