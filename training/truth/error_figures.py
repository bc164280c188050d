"""The figures of errors request by request: their distribution, and measured against simulated times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..picture import GREY, PALE, legend_height, new_figure, set_legend, set_log_ticks
from ..policy_style import PALETTE, Style
from .quantities import QUANTITIES, Quantity
from .truth import Truth, pairs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

BARE, ADDED, REPEAT = "simulated", "simulated, overhead added", "repeat of the measurement"

STYLES = {
    BARE: Style(PALETTE[1], "o", (5, 2), ""),
    ADDED: Style(PALETTE[0], "D", (), ""),
    REPEAT: Style(PALETTE[2], "s", (1, 1.5), ""),
}

LEAST_ERROR = 1e-4
"""Errors below it are drawn at it: 0.01 %."""


def draw_errors(truth: Truth) -> Figure:
    """Distribution of the relative errors of all policies: without and with the overhead, and of the repeat."""
    shown = {name: STYLES[name] for name in _sets(truth, QUANTITIES[0])}
    figure = new_figure(2.9 + legend_height(shown))
    grid = figure.subplots(1, len(QUANTITIES), sharey=True, squeeze=False)[0]
    for axes, quantity in zip(grid, QUANTITIES, strict=True):
        axes.set(title=quantity.title, xlabel="error ÷ measured", xscale="log", ylim=(0, 1.02))
        axes.grid(True)
        for name, relative in _sets(truth, quantity).items():
            if len(relative):
                _draw_shares(axes, np.maximum(np.sort(relative), LEAST_ERROR), STYLES[name])
        set_log_ticks(axes.xaxis, lambda share: f"{100 * share:g} %")
    grid[0].set_ylabel("share of requests")
    set_legend(figure, f"Errors request by request, all policies: {truth.results.title}", shown)
    return figure


def _sets(truth: Truth, quantity: Quantity) -> dict[str, Floats]:
    """Relative errors by what is compared with the measurement."""
    sets = {BARE: _relative(*pairs_of(truth.runs, quantity, 0))}
    if truth.overhead.known and quantity.overhead:
        sets[ADDED] = _relative(*pairs_of(truth.runs, quantity, truth.overhead.total))
    if truth.noise is not None:
        runs = truth.noise.runs
        one, two = (np.concatenate([part[quantity.name] for part in parts]) for parts in (
            [run.measured for run in runs], [run.repeat for run in runs]
        ))
        known = np.isfinite(one) & np.isfinite(two)
        sets[REPEAT] = _relative(one[known], two[known])
    return sets


def _relative(measured: Floats, other: Floats) -> Floats:
    return np.abs(other - measured) / np.maximum(measured, 1e-12)


def _draw_shares(axes: Axes, rising: Floats, style: Style) -> None:
    share = np.arange(1, len(rising) + 1) / len(rising)
    axes.plot(rising, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
    axes.plot([float(np.median(rising))], [0.5], style.marker, color=style.colour, markersize=6, mec="white")


def draw_scatter(truth: Truth) -> Figure:
    """Measured against simulated times of every request; the overhead is added where it is known."""
    styles = {label: truth.styles[label] for label in truth.labels}
    figure = new_figure(3.45 + legend_height(styles))
    grid = figure.subplots(1, len(QUANTITIES), squeeze=False)[0]
    for axes, quantity in zip(grid, QUANTITIES, strict=True):
        ends: list[float] = []
        for label, runs in truth.replays.items():
            measured, simulated = (
                quantity.scale * times for times in pairs_of(runs, quantity, shown_overhead(truth, quantity))
            )
            axes.plot(
                *(simulated, measured, styles[label].marker),
                color=styles[label].colour,
                markersize=2.5,
                alpha=0.35,
                mew=0,
                rasterized=True,
            )
            both = np.concatenate([measured, simulated])
            both = both[both > 0]
            ends += [float(both.min()), float(both.max())] if len(both) else []
        draw_diagonal(axes, ends)
        name_axes(axes, quantity)
    set_legend(figure, f"Measured against simulated{added_words(truth)}: {truth.results.title}", styles)
    return figure


def shown_overhead(truth: Truth, quantity: Quantity) -> int:
    """Ps that figures add to what was simulated."""
    return truth.overhead.total if quantity.overhead else 0


def added_words(truth: Truth) -> str:
    """Whether the overhead was added, to follow a title."""
    return f" (overhead of {truth.overhead.total / 1e9:.2f} ms added)" if truth.overhead.known else ""


def draw_diagonal(axes: Axes, ends: list[float]) -> None:
    """The line where both agree, the band of a tenth around it, and equal logarithmic axes that hold these ends."""
    low, high = (min(ends) / 1.15, max(ends) * 1.15) if ends else (0.1, 1.0)
    line = np.array([low, high])
    axes.fill_between(line, line / 1.1, line * 1.1, color=PALE, linewidth=0, zorder=0)
    axes.plot(line, line, color=GREY, linewidth=0.9, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal")


def name_axes(axes: Axes, quantity: Quantity) -> None:
    """Title, units and plain numbers on both logarithmic axes."""
    axes.set(
        title=quantity.title, xlabel=f"simulated, {quantity.unit}", ylabel=f"measured, {quantity.unit}"
    )
    for axis in (axes.xaxis, axes.yaxis):
        set_log_ticks(axis, "{:g}".format)
