"""The figure of goodput: each policy's mean with its interval and its traces, and the difference to the baseline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..picture import GREY, SMALL, keep_shares, new_figure, set_title
from ..policy_style import Style
from ..statistics import Estimate
from ..table import wrap_label
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_goodput(material: Material) -> Figure:
    """Goodput per policy, and beside it the difference to the baseline, paired by trace.

    A marker is the mean, a bar the interval, a dot one trace; the dotted line is the ceiling.
    """
    comparison = material.comparison
    lines = comparison.lines
    figure = new_figure(1.5 + 0.5 * len(lines))
    several = len(lines) > 1
    grid = figure.subplots(1, 2 if several else 1, sharey=True, squeeze=False, width_ratios=(1.4, 1)[: 1 + several])[0]
    for place, line in enumerate(lines):
        style = material.styles[line.label]
        _draw_estimate(grid[0], place, line.goodput, style, 1.0, "{:.3f}")
        if several and line.difference is not None:
            _draw_estimate(grid[1], place, line.difference, style, 100.0, "{:+.1f}")
    grid[0].set_yticks(range(len(lines)), [wrap_label(line.label, 26) for line in lines])
    grid[0].set_ylim(len(lines) - 0.5, -0.6)
    grid[0].set_xlabel("goodput (share of requests)")
    if math.isfinite(comparison.ceiling):
        grid[0].axvline(comparison.ceiling, color=GREY, linestyle=(0, (1, 1)), linewidth=1.2)
    keep_shares(grid[0], along_x=True)
    if several:
        grid[1].axvline(0.0, color=GREY, linewidth=1.0)
        grid[1].set_xlabel(f"difference to {wrap_label(comparison.baseline, 26)} (points)")
    for axes in grid:
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    signs = f"dots: traces; dotted: ceiling; intervals: {comparison.interval}"
    set_title(figure, f"Goodput: {material.results.title}; {signs}")
    return figure


def _draw_estimate(axes: Axes, place: int, estimate: Estimate, style: Style, unit: float, words: str) -> None:
    values = [unit * value for value in estimate.values]
    axes.plot(values, [place + 0.22] * len(values), "o", color=style.colour, markersize=3, alpha=0.35)
    if estimate.low is not None and estimate.high is not None:
        ends = [unit * estimate.low, unit * estimate.high]
        axes.plot(ends, [place, place], color=style.colour, linewidth=3, alpha=0.5)
    mean = unit * estimate.mean
    axes.plot([mean], [place], style.marker, color=style.colour, markersize=6)
    axes.annotate(
        words.format(mean), (mean, place), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=SMALL
    )
