"""The figure of goodput against the scale of the targets: how the policies compare under tighter and looser SLOs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..picture import GREY, keep_shares, legend_height, new_figure, set_legend
from ..policy_style import Style
from ..statistics import Estimate, mean_over_seeds, paired_difference
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..results import Results

Curve = dict[float, Estimate]
"""Estimates by the factor on all targets, rising."""


def goodput_at_scales(results: Results, label: str) -> Curve:
    """Goodput of a policy at each scale of the targets, over the seeds."""
    return {scale: mean_over_seeds(values) for scale, values in _values(results, label).items()}


def difference_at_scales(results: Results, label: str, baseline: str) -> Curve:
    """Goodput of a policy minus that of a baseline at each scale, paired by seed."""
    mine, other = _values(results, label), _values(results, baseline)
    return {scale: paired_difference(mine[scale], other[scale]) for scale in mine}


def draw_slo_scale(material: Material) -> Figure:
    """Goodput at 0.5 to 3 times the targets, and beside it the difference to the baseline."""
    results, baseline = material.results, material.comparison.baseline
    figure = new_figure(4.0 + legend_height(material.styles))
    several = len(material.labels) > 1
    grid = figure.subplots(1, 2 if several else 1, squeeze=False)[0]
    opacity = min(0.15, 0.8 / len(material.labels))  # Many bands lie on one another.
    for label, style in material.styles.items():
        draw_curve(grid[0], goodput_at_scales(results, label), style, 1.0, opacity)
        if several and label != baseline:
            draw_curve(grid[1], difference_at_scales(results, label, baseline), style, 100.0, opacity)
    grid[0].set_ylabel("goodput (share of requests)")
    keep_shares(grid[0], along_x=False)
    if several:
        grid[1].axhline(0.0, color=material.styles[baseline].colour, linewidth=1.0)
        grid[1].set_ylabel(f"difference to {baseline} (points)")
    for axes in grid:
        _label_scales(axes, list(goodput_at_scales(results, baseline)))
    set_legend(figure, f"Goodput against the scale of the SLOs: {results.title}", material.styles)
    return figure


def band(estimate: Estimate) -> tuple[float, float]:
    """The interval of an estimate; where there is none, the lowest and the highest value."""
    if estimate.low is None or estimate.high is None:
        return min(estimate.values), max(estimate.values)
    return estimate.low, estimate.high


def _values(results: Results, label: str) -> dict[float, list[float]]:
    summaries = [run.summary for run in results.runs[label]]
    return {float(scale): [s.scaled[scale] for s in summaries] for scale in summaries[0].scaled}


def draw_curve(
    axes: Axes, curve: Curve | Mapping[int, Estimate], style: Style, unit: float, opacity: float
) -> None:
    """One line with the band of its intervals.

    Args:
        axes: where to.
        curve: estimates by what is on the x axis.
        style: of the policy.
        unit: factor on the estimates.
        opacity: of the band.
    """
    scales = list(curve)
    low, high = unit * np.array([band(estimate) for estimate in curve.values()]).T
    axes.fill_between(scales, low, high, color=style.colour, alpha=opacity, linewidth=0)
    means = [unit * estimate.mean for estimate in curve.values()]
    axes.plot(scales, means, color=style.colour, linestyle=style.line, marker=style.marker, markersize=4.5)


def _label_scales(axes: Axes, scales: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
    axes.set_xticks([], minor=True)
    axes.axvline(1.0, color=GREY, linestyle=(0, (1, 1)), linewidth=1.2)
    axes.set_xlabel("all targets multiplied by")
    axes.grid(True)
