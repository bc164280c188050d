"""The figures of distributions: quantiles against quantiles, and both distribution functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..picture import GREY, legend_height, new_figure, set_legend, set_log_ticks
from ..policy_style import Style
from ..report.delays import later_than
from ..table import wrap_label
from .error_figures import added_words, shown_overhead
from .quantities import QUANTITIES
from .truth import Truth, pairs_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERCENTILES = np.arange(1, 100) / 100

MEASURED, SIMULATED = "measured", "simulated"


def draw_quantiles(truth: Truth) -> Figure:
    """P1 to P99: how far the simulated quantile lies above the measured one, a line per policy."""
    styles = {label: truth.styles[label] for label in truth.labels}
    figure = new_figure(3.0 + legend_height(styles))
    grid = figure.subplots(1, len(QUANTITIES), squeeze=False)[0]
    for axes, quantity in zip(grid, QUANTITIES, strict=True):
        axes.axhline(0.0, color=GREY, linewidth=0.9)
        axes.set(title=quantity.title, xscale="log", xlabel=f"measured quantile, {quantity.unit}")
        axes.grid(True)
        for label, runs in truth.replays.items():
            times = pairs_of(runs, quantity, shown_overhead(truth, quantity))
            if not len(times[0]):
                continue
            measured, simulated = (quantity.scale * np.quantile(each, PERCENTILES) for each in times)
            off, style = 100 * (simulated / measured - 1), styles[label]
            axes.plot(measured, off, color=style.colour, linestyle=style.line, linewidth=1.2)
            axes.plot(measured[49:50], off[49:50], style.marker, color=style.colour, markersize=6, mec="white")
        low, high = axes.get_ylim()
        reach = max(abs(low), abs(high), 1.0)
        axes.set_ylim(-reach, reach)
        set_log_ticks(axes.xaxis, "{:g}".format)
    grid[0].set_ylabel("simulated ÷ measured − 1, %")
    set_legend(figure, f"Quantiles{added_words(truth)}: {truth.results.title}", styles)
    return figure


def draw_distributions(truth: Truth) -> Figure:
    """Both distribution functions of each policy, a row each."""
    labels = truth.labels
    shown = {MEASURED: Style(GREY, "", (), ""), SIMULATED: Style(GREY, "", (5, 2), "")}
    figure = new_figure(1.1 + 1.6 * len(labels) + legend_height(shown))
    grid = figure.subplots(len(labels), len(QUANTITIES), sharey=True, sharex="col", squeeze=False)
    for row, label in zip(grid, labels, strict=True):
        style = truth.styles[label]
        for axes, quantity in zip(row, QUANTITIES, strict=True):
            times = pairs_of(truth.replays[label], quantity, shown_overhead(truth, quantity))
            for values, line in zip(times, (shown[MEASURED], shown[SIMULATED]), strict=True):
                at, share = later_than(quantity.scale * values)
                kept = share > 0
                axes.plot(
                    at[kept], share[kept], color=style.colour if line.line is None else "black", linestyle=line.line
                )
            axes.set(xscale="log", yscale="log")
            axes.grid(True)
        row[0].set_ylabel(wrap_label(label, 18), fontsize="small")
    for axes, quantity in zip(grid[-1], QUANTITIES, strict=True):
        axes.set_xlabel(f"{quantity.title}, {quantity.unit}")
        set_log_ticks(axes.xaxis, "{:g}".format)
    set_log_ticks(grid[0, 0].yaxis, lambda share: f"{100 * share:g} %")
    set_legend(figure, f"Share of requests later than a time{added_words(truth)}: {truth.results.title}", shown)
    return figure
