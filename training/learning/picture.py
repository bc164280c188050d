"""The learning curve as a picture: one panel for each scalar of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..picture import drawing, new_figure, save_png, set_title
from ..policy_style import PALETTE

MOST = 8
"""Panels; further scalars stand in the table alone."""

STROKES = ("-", "--", ":", "-.")
"""Lines of the same colour."""

MOST_INSIDE = 4
"""Lines of a panel whose names stand in it; those of more stand beside it."""


def draw_learning(rows: Sequence[Mapping[str, Any]], title: str, unit: str, path: Path) -> Path:
    """Writes the learning curve.

    Scalars whose names differ only after a slash, such as `gain/mean` and `gain/best`, share a panel.

    Args:
        rows: of the log, each with its `step`.
        title: over the picture.
        unit: what steps count.
        path: PNG file.

    Raises:
        OSError: it cannot be written.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    panels: dict[str, list[str]] = {}
    for name in names:
        panels.setdefault(name.partition("/")[0], []).append(name)
    shown = list(panels.items())[:MOST]
    with drawing():
        figure = new_figure(0.8 + 1.5 * max(len(shown), 1))
        axes = figure.subplots(max(len(shown), 1), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (panel, lines) in zip(axes, shown, strict=False):
            for k, name in enumerate(lines):
                points = [(row["step"], row[name]) for row in rows if name in row]
                label = name.partition("/")[2] or name
                colour, stroke = PALETTE[k % len(PALETTE)], STROKES[k // len(PALETTE) % len(STROKES)]
                axis.plot(*zip(*points, strict=True), color=colour, linestyle=stroke, linewidth=1.2, label=label)
            axis.set_ylabel(panel)
            axis.grid(True)
            if 1 < len(lines) <= MOST_INSIDE:
                axis.legend(loc="upper left", ncols=MOST_INSIDE, frameon=False)
            elif len(lines) > 1:
                columns = 1 + (len(lines) - 1) // MOST
                axis.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=columns, frameon=False, fontsize="x-small")
        axes[-1].set_xlabel(unit)
        set_title(figure, title)
    save_png(figure, path)
    return path
