"""Figures in the study's form: bars side by side, or lines; the study's own numbers beside ours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..picture import GREY, SMALL, drawing, new_figure, png_bytes, set_legend, set_log_ticks
from ..table import wrap_label
from .config import FigureConfig, Published
from .experiment import Experiment
from .quantities import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READING = (
    "Means over the traces with 95 % intervals; a hollow diamond, or a bar between two, is the study's number. Axes of "
    "goodput do not begin at zero."
)
"""How to read all of them."""

_FAR = 20.0
"""Ratio of delays beyond which their axis is logarithmic."""


def draw(experiment: Experiment, figure: FigureConfig) -> bytes:
    """A figure as PNG; the same experiment gives the same bytes."""
    with drawing():
        drawn = _bars(experiment, figure) if figure.kind == "bars" else _lines(experiment, figure)
    return png_bytes(drawn)


def _bars(experiment: Experiment, figure: FigureConfig) -> Figure:
    styles = experiment.styles(figure)
    panels = len(figure.quantities)
    columns = min(panels, 3) if panels != 4 else 2
    rows = -(-panels // columns)
    drawn = new_figure(1.0 + 2.6 * rows + 0.17 * len(figure.series))
    grid = drawn.subplots(rows, columns, squeeze=False)
    width = 0.8 / len(figure.series)
    for axes, name in zip(grid.flat, figure.quantities, strict=False):
        tops: list[float] = []
        for turn, series in enumerate(figure.series):
            style = styles[series.label]
            for place, arm in enumerate(figure.arms_of(series)):
                if arm is None:
                    continue
                at = place + (turn - (len(figure.series) - 1) / 2) * width
                estimate = experiment.measured.estimate(arm, name)
                if not math.isfinite(estimate.mean):
                    axes.annotate("∞", (at, 0), ha="center", va="bottom", color=style.colour)
                    continue
                axes.bar(at, estimate.mean, 0.92 * width, color=style.colour, hatch=style.hatch, edgecolor="white")
                tops += [estimate.mean, *_draw_interval(axes, at, estimate.low, estimate.high)]
                if figure.traces:
                    dots = [QUANTITIES[name].shown * value for value in experiment.measured.values(arm, name)]
                    first = dots[: figure.traces]
                    axes.plot([at] * len(first), first, "o", color="white", markeredgecolor="black", markersize=3.5)
                    tops += first
                tops += _draw_published(axes, at, experiment.published(arm, name), 0.3 * width)
        axes.set_xticks(range(len(figure.places)), [wrap_label(str(place), 18) for place in figure.places])
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="y")
        _set_height(axes, name, tops)
    for axes in list(grid.flat)[panels:]:
        axes.set_visible(False)
    words = f"{figure.title}; {_traces(experiment)}"
    set_legend(drawn, words + (f"; dots: the first {figure.traces}" if figure.traces else ""), styles)
    return drawn


def _lines(experiment: Experiment, figure: FigureConfig) -> Figure:
    styles = experiment.styles(figure)
    drawn = new_figure(1.1 + 2.9 * len(figure.quantities) + 0.17 * len(figure.series))
    grid = drawn.subplots(len(figure.quantities), 1, squeeze=False)[:, 0]
    places = [float(place) for place in figure.places]
    for axes, name in zip(grid, figure.quantities, strict=True):
        heights: list[float] = []
        for series in figure.series:
            style = styles[series.label]
            arms = [(place, arm) for place, arm in zip(places, figure.arms_of(series), strict=True) if arm is not None]
            estimates = [experiment.measured.estimate(arm, name) for _, arm in arms]
            means = [estimate.mean for estimate in estimates]
            where = [place for place, _ in arms]
            axes.plot(where, means, color=style.colour, linestyle=style.line, marker=style.marker, markersize=5)
            for (place, arm), estimate in zip(arms, estimates, strict=True):
                heights += [estimate.mean, *_draw_interval(axes, place, estimate.low, estimate.high, style.colour)]
                heights += _draw_published(axes, place, experiment.published(arm, name), 0.0, style.colour)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.grid(axis="y")
        _set_height(axes, name, heights)
    grid[-1].set_xlabel(figure.along)
    set_legend(drawn, f"{figure.title}; {_traces(experiment)}", styles)
    return drawn


def _draw_interval(
    axes: Axes, at: float, low: float | None, high: float | None, colour: str = GREY
) -> list[float]:
    """Draws an interval, if there is one, and gives its ends."""
    if low is None or high is None:
        return []
    axes.plot([at, at], [low, high], color=colour, linewidth=2.4, alpha=0.7, solid_capstyle="butt")
    return [low, high]


def _draw_published(
    axes: Axes, at: float, published: Published | None, shift: float, colour: str = "black"
) -> list[float]:
    """Draws the study's number, if there is one, and gives its ends."""
    if published is None:
        return []
    low, high = published.ends
    if low != high:
        axes.plot([at + shift] * 2, [low, high], color=colour, linewidth=1.0, linestyle=(0, (2, 1)))
    ends = sorted({low, high})
    axes.plot(
        [at + shift] * len(ends), ends, "D", markerfacecolor="white", markeredgecolor=colour, markersize=5, zorder=5
    )
    return ends


def _set_height(axes: Axes, name: str, values: list[float]) -> None:
    """Label and limits; goodput is looked at closely, all else from zero."""
    axes.set_ylabel(QUANTITIES[name].title, fontsize=SMALL)
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    room = 0.08 * (high - low or 1.0)
    if name == "ttft-p99" and low > 0 and high / low > _FAR:
        axes.set_yscale("log")
        axes.set_ylim(low / 2, 1.5 * high)
        set_log_ticks(axes.yaxis, lambda value: f"{value:g}")
    elif name == "goodput":
        axes.set_ylim(max(0.0, low - 2 * room), min(1.0, high + room))
    else:
        axes.set_ylim(0.0, high + room)


def _traces(experiment: Experiment) -> str:
    count = len(experiment.plan.seeds)
    return f"{count} trace{'s' if count > 1 else ''}, diamonds: the study's numbers"
