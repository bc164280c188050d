"""A matrix as a heat map: points to the reference, condition by condition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..picture import GREY, SMALL, drawing, new_figure, png_bytes, set_title
from ..table import wrap_label
from .cells import Matrix
from .tables import SIGNIFICANT, short_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "PuOr"
"""Orange below the reference, purple above it: both ends are told apart by people with any colour vision."""

LEAST_REACH, MOST_REACH = 1.0, 10.0
"""Points that the colours span, on either side of zero: one collapse should not make all else look alike."""


def matrix_figure(matrix: Matrix) -> Figure:
    """Conditions down, policies across, differences in points; call it inside `drawing()`."""
    import numpy as np

    others = matrix.labels[1:]
    values = np.array([[_points_of(matrix, row, label) for label in others] for row in range(len(matrix.rows))])
    known = np.abs(values[np.isfinite(values)])
    largest = float(known.max(initial=0.0))
    reach = min(max(LEAST_REACH, largest), MOST_REACH)
    figure = new_figure(1.6 + 0.34 * len(matrix.rows))
    axes = figure.subplots()
    image = axes.imshow(values, cmap=COLOURS, vmin=-reach, vmax=reach, aspect="auto")
    for y, row in enumerate(matrix.rows):
        for x, label in enumerate(others):
            dark = math.isfinite(values[y, x]) and abs(values[y, x]) > 0.6 * reach
            text = short_points(row.cells[label])
            axes.text(x, y, text, ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
    axes.set_xticks(range(len(others)), [wrap_label(label, max(10, 70 // len(others))) for label in others])
    axes.set_yticks(range(len(matrix.rows)), [f"{row.name}\nceiling {row.ceiling:.3f}" for row in matrix.rows])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(others))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(matrix.rows))], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, extend="both" if largest > reach else "neither")
    bar.set_label(f"points to {matrix.reference}", color=GREY)
    bar.outline.set_visible(False)
    set_title(figure, f"{matrix.title}; {SIGNIFICANT}: the 95 % interval excludes zero")
    return figure


def matrix_png(matrix: Matrix) -> bytes:
    """The heat map as PNG; the same matrix gives the same bytes."""
    with drawing():
        figure = matrix_figure(matrix)
    return png_bytes(figure)


def _points_of(matrix: Matrix, row: int, label: str) -> float:
    difference = matrix.rows[row].cells[label].difference
    return math.nan if difference is None else 100 * difference.mean
