"""The figure of residuals: what the model leaves, against what may drive it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..picture import GREY, new_figure, set_log_ticks, set_title
from ..policy_style import PALETTE
from .error_figures import added_words
from .quantities import TPOT, TTFT
from .residuals import DRIVERS, Residuals
from .truth import Truth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILLION = PALETTE[:2]

KEPT = 0.98
"""Share of the residuals that an axis holds; the others lie beyond it."""


def draw_residuals(truth: Truth) -> Figure:
    """Residuals of TTFT and TPOT, a row each, against each driver, a column each."""
    figure = new_figure(5.2)
    grid = figure.subplots(2, len(DRIVERS), sharey="row", squeeze=False)
    found = {(each.quantity.name, each.driver): each for each in truth.residuals}
    for row, quantity in zip(grid, (TTFT, TPOT), strict=True):
        for axes, driver in zip(row, DRIVERS, strict=True):
            _draw(axes, found[quantity.name, driver])
        edges = np.quantile(1e3 * found[quantity.name, DRIVERS[0]].residual, ((1 - KEPT) / 2, (1 + KEPT) / 2))
        room = 0.15 * max(float(edges[1] - edges[0]), 1e-3)
        row[0].set_ylim(float(edges[0]) - room, float(edges[1]) + room)
        row[0].set_ylabel(f"{quantity.title}, measured − simulated, ms")
    set_title(figure, f"Residuals of all policies{added_words(truth)}: {truth.results.title}")
    return figure


def _draw(axes: Axes, each: Residuals) -> None:
    spread = 0.0
    if each.driver == "instance":  # Dots side by side, the same in every drawing.
        spread = 0.6
    shift = spread * (np.arange(len(each.at)) * 0.6180339887 % 1.0 - 0.5)
    axes.plot(
        each.at + shift, 1e3 * each.residual, ".", color=GREY, markersize=2.5, alpha=0.3, mew=0, rasterized=True
    )
    middle = [float(np.median(each.at[(each.at >= low) & (each.at <= high)])) for low, high, *_ in each.bins]
    low, median, high = (1e3 * np.array([bin_[k] for bin_ in each.bins]) for k in (3, 4, 5))
    if each.driver == "instance":
        axes.errorbar(middle, median, (median - low, high - median), fmt="o", color=BLUE, markersize=4, elinewidth=2)
        axes.set_xticks(middle)
    else:
        axes.fill_between(middle, low, high, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(middle, median, "o-", color=BLUE, markersize=3)
    axes.axhline(0.0, color=VERMILLION, linewidth=0.8)
    if each.driver == "prompt":
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis, "{:g}".format)
    axes.set_xlabel(each.axis)
    axes.set_title(f"explains {100 * each.explained:.0f} %", fontsize="small")
    axes.grid(axis="y")
