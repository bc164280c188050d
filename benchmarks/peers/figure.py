"""The distributions of both simulators as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...envs.picture import BLACK, BLUE, GREEN, VERMILLION, drawing, new_figure, png_bytes, set_log_ticks
from .delays import Delays, Floats
from .report import VARIANTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"own": (BLUE, ":"), "same": (VERMILLION, "-"), "free": (GREEN, "--")}
"""Colour and line of each variant."""

POINTS = 400

HEIGHT = 5.4
"""Inches."""


def draw(theirs: Delays, ours: dict[str, Delays], title: str) -> bytes:
    """The share of requests with a longer TTFT and TPOT, above, and the ratio of equal quantiles, below, as PNG.

    Args:
        theirs: Dynamo's.
        ours: by variant.
        title: over the picture.
    """
    with drawing():
        figure = new_figure(HEIGHT)
        cells = figure.subplots(2, 2, sharex="col", height_ratios=(3, 2))
        for column, delay in enumerate(("ttft", "tpot")):
            other = _sorted(getattr(theirs, delay))
            mine = {name: _sorted(getattr(delays, delay)) for name, delays in ours.items()}
            _draw_tails(cells[0, column], other, mine)
            _draw_ratios(cells[1, column], other, mine)
            cells[1, column].set_xlabel(f"{delay.upper()}, ms")
        for axes in cells[:, 0]:
            axes.set_xscale("log")
            set_log_ticks(axes.xaxis, "{:g}".format)
        cells[0, 0].set_ylabel("share with a longer delay")
        cells[1, 0].set_ylabel("ours over Dynamo's")
        figure.legend(
            *cells[0, 0].get_legend_handles_labels(),
            title=title,
            loc="outside upper left",
            ncols=2,
            frameon=False,
            alignment="left",
        )
        return png_bytes(figure, title)


def _draw_tails(axes: Axes, theirs: Floats, ours: dict[str, Floats]) -> None:
    left = _left(len(theirs))
    axes.plot(_at(theirs, left), left, color=BLACK, linewidth=2.4, alpha=0.5, label="Dynamo")
    for name, values in ours.items():
        colour, line = STYLES[name]
        axes.plot(_at(values, left), left, color=colour, linestyle=line, linewidth=1.2, label=VARIANTS[name])
    axes.set_yscale("log")
    axes.set_yticks([1, 0.1, 0.01, 0.001], ["1", "0.1", "0.01", "0.001"])
    axes.set_yticks([], minor=True)


def _draw_ratios(axes: Axes, theirs: Floats, ours: dict[str, Floats]) -> None:
    left = _left(len(theirs))
    axes.axhline(1, color=BLACK, linewidth=0.8)
    for name, values in ours.items():
        colour, line = STYLES[name]
        axes.plot(_at(theirs, left), _at(values, left) / _at(theirs, left), color=colour, linestyle=line, linewidth=1.2)


def _left(count: int) -> Floats:
    """Shares of requests that are longer: dense at the tail, as far as ten requests of the count."""
    return np.geomspace(1, min(1.0, 10 / count), POINTS)


def _at(values: Floats, left: Floats) -> Floats:
    """Delay that this share of the requests exceeds, ms."""
    quantiles: Floats = 1e3 * np.quantile(values, 1 - left)
    return quantiles


def _sorted(values: Floats) -> Floats:
    kept: Floats = np.sort(values[~np.isnan(values)])
    return kept
