"""The figure of balance: how evenly each policy loads the instances of a pool over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ..description import Description
from ..picture import SMALL, TEXT, WIDTH, new_figure, wrap_title
from ..stored_records import StoredRecords
from ..table import number
from .in_flight import legs_of, mean_in_flight, stay, unevenness
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

WINDOW_S = 10.0
"""Length of the windows over which the load is averaged, seconds."""

MOST_WINDOWS, FEWEST_WINDOWS = 180, 5
"""Longer measurements get wider windows, shorter ones narrower ones."""


@dataclass(frozen=True, eq=False)
class Load:
    """What the instances of a pool carry over time, as means over windows.

    Attributes:
        requests: (n, B) requests on each instance.
        tokens: (n, B) their tokens: prompts on prefill instances, prompts and outputs elsewhere.
    """

    requests: Floats
    tokens: Floats


def window_edges(description: Description) -> npt.NDArray[np.int64]:
    """(B + 1,) edges of equal windows over the measurement window, ps."""
    seconds = description.duration_s
    width = WINDOW_S * max(1, math.ceil(seconds / WINDOW_S / MOST_WINDOWS))
    count = max(FEWEST_WINDOWS, round(seconds / width))
    window = description.window
    return np.linspace(window.start, window.end, count + 1).astype(np.int64)


def pool_loads(run: StoredRecords, description: Description) -> dict[str, Load]:
    """Load of each pool by role, from admission to the end of the prefill, and from there to the last token."""
    prompt, output = run.trace.prompt.astype(np.int64), run.trace.output.astype(np.int64)
    parts = {"prefill": ("queue", "prefill", prompt), "decode": ("offered", "decode", prompt + output)}
    parts |= {"mixed": ("queue", "decode", prompt + output)}
    edges, loads = window_edges(description), {}
    for leg in legs_of(run, description.aggregated):
        first, last, tokens = parts[leg.role]
        here, size = stay(leg, first, last), description.pools[leg.role]
        loads[leg.role] = Load(
            requests=mean_in_flight(here, edges, size), tokens=mean_in_flight(here, edges, size, tokens)
        )
    return loads


def draw_balance(material: Material) -> Figure:
    """A row per policy, two columns per pool: the mean over the instances, and the span from least to most loaded."""
    description = material.results.description
    loads = {label: pool_loads(run, description) for label, run in material.records.items()}
    columns = [(role, what) for role in description.pools for what in ("requests", "tokens")]
    height = _TOP + _BOTTOM + (_ROW + _GAP) * len(loads) - _GAP
    figure = new_figure(height, layout=None)  # So many axes take long to be laid out.
    grid = figure.subplots(len(loads), len(columns), sharex=True, sharey="col", squeeze=False)
    figure.subplots_adjust(
        left=_LEFT / WIDTH,
        right=1 - 0.1 / WIDTH,
        bottom=_BOTTOM / height,
        top=1 - _TOP / height,
        hspace=_GAP / _ROW,
        wspace=0.28,
    )
    edges = window_edges(description) / PS_PER_S
    for row, (label, pools) in zip(grid, loads.items(), strict=True):
        for axes, (role, what) in zip(row, columns, strict=True):
            load = pools[role].requests if what == "requests" else pools[role].tokens / 1000
            _draw_load(axes, load, (edges[1:] + edges[:-1]) / 2, material.styles[label].colour)
        row[0].set_title(label, loc="left", fontsize=SMALL, fontweight="bold")
    for first, last, (role, what) in zip(grid[0], grid[-1], columns, strict=True):
        heading = f"{role}: {what if what == 'requests' else '1,000 tokens'}"
        first.annotate(heading, (0, 1), xycoords="axes fraction", xytext=(0, 18), textcoords="offset points")
        last.set_ylim(0, 1.3 * last.get_ylim()[1])  # Room for the words.
        last.set_xlabel("time, s")
    words = f"Balance over time: {description.title(material.results.seeds[:1])}"
    figure.text(0.01, 1 - 0.08 / height, wrap_title(words), va="top", fontsize=TEXT)
    return figure


_TOP, _BOTTOM, _LEFT = 0.88, 0.5, 0.5
_ROW, _GAP = 0.65, 0.32
"""Inches."""


def _draw_load(axes: Axes, load: Floats, times: Floats, colour: str) -> None:
    axes.fill_between(times, load.min(axis=0), load.max(axis=0), color=colour, alpha=0.35, linewidth=0)
    axes.plot(times, load.mean(axis=0), color=colour, linewidth=1.2)
    words = number(unevenness(load), 2)
    axes.text(0.99, 0.99, f"CV {words}", transform=axes.transAxes, ha="right", va="top", fontsize=SMALL)
    axes.grid(True)
