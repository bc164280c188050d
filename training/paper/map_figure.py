"""The map as a heat map: findings down, points across."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..picture import GREY, drawing, new_figure, png_bytes, set_title
from .condition_map import Cell, ConditionMap
from .map_tables import MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "PuOr"
"""Orange outside what the claim says, purple inside: both ends are told apart by people with any colour vision."""

REACH = 3.0
"""Margins of the rule that the colours span, on either side of its bound."""

TINY = 5.5
"""Size of the numbers, points."""


def map_png(found: ConditionMap) -> bytes:
    """The heat map as PNG; the same map gives the same bytes."""
    with drawing():
        figure = _map_figure(found)
    return png_bytes(figure)


def _map_figure(found: ConditionMap) -> Figure:
    import numpy as np

    findings = found.plan.findings
    points = [point for point, _ in found.plan.points]
    rows = [[found.cells[finding.name, point.name] for point in points] for finding in findings]
    values = np.array([[_room(cell) for cell in row] for row in rows])
    figure = new_figure(max(4.0, 2.4 + 0.3 * len(findings)))
    axes = figure.subplots()
    image = axes.imshow(values, cmap=COLOURS, vmin=-REACH, vmax=REACH, aspect="auto")
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            dark = math.isfinite(values[y, x]) and abs(values[y, x]) > 0.6 * REACH
            text = "–" if not cell.compared else f"{_short(cell)}\n{MARKS[cell.state]}"
            axes.text(x, y, text, ha="center", va="center", fontsize=TINY, color="white" if dark else "black")
    axes.set_xticks(range(len(points)), [point.label for point in points], rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(findings)), [finding.name for finding in findings], fontsize=7)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    edge = 0.5  # The default stands alone, then come the axes.
    for axis in found.plan.axes:
        axes.axvline(edge, color=GREY, linewidth=1.0)
        edge += len(axis.points)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, extend="both")
    bar.set_label("margins inside the claim", color=GREY)
    bar.outline.set_visible(False)
    count = len(found.plan.seeds)
    title = f"Where does each finding hold? {count} traces each; effects of the weakest comparison; "
    set_title(figure, title + f"{MARKS['holds']} holds, {MARKS['fails']} fails")
    return figure


def _room(cell: Cell) -> float:
    if not cell.compared:
        return math.nan
    return max(-REACH, min(REACH, cell.weakest.effect.room))


def _short(cell: Cell) -> str:
    mean = cell.weakest.effect.estimate.mean
    if not math.isfinite(mean):
        return "∞" if mean > 0 else "?"
    return f"{mean:+.1f}" if abs(mean) < 99.5 else f"{mean:+.0f}"
