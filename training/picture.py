"""Pictures: one width, one look, and the same bytes for the same data."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from ..envs.picture import DPI as DPI
from ..envs.picture import GREY as GREY
from ..envs.picture import PALE as PALE
from ..envs.picture import SMALL as SMALL
from ..envs.picture import TEXT as TEXT
from ..envs.picture import WIDTH as WIDTH
from ..envs.picture import drawing as drawing
from ..envs.picture import new_figure as new_figure
from ..envs.picture import png_bytes as plain_png_bytes
from ..envs.picture import set_log_ticks as set_log_ticks
from .policy_style import Style
from .runs import RESULTS_SCHEMA, write_atomically
from .table import wrap_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 98
"""Characters of the small text on a line of a picture."""


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG, with the schema version of results."""
    return plain_png_bytes(figure, f"results schema {RESULTS_SCHEMA}")


def save_png(figure: Figure, path: Path) -> None:
    """Writes a figure; the same figure gives the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(path, png_bytes(figure))


def set_title(figure: Figure, text: str) -> None:
    """A title over a figure without legend."""
    figure.suptitle(wrap_title(text), x=0.01, ha="left", fontsize=TEXT)


def legend_height(styles: dict[str, Style]) -> float:
    """Inches that the rows of a legend after its first one take."""
    names, columns = _legend_grid(styles)
    rows = -(-len(names) // columns)
    lines = (sum(1 + name.count("\n") for name in names[k : k + rows]) for k in range(0, len(names), rows))
    return _LEGEND_ROW * (max(lines) - 1)


def set_legend(figure: Figure, text: str, styles: dict[str, Style]) -> None:
    """A title over a figure, and under it the policies, in as many columns as their names leave room for."""
    from matplotlib.lines import Line2D

    names, columns = _legend_grid(styles)
    handles = [
        Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker, markersize=5)
        for style in styles.values()
    ]
    figure.legend(
        handles,
        names,
        title=wrap_title(text),
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        alignment="left",
        title_fontsize=TEXT,
        handlelength=3.2,
    )


def keep_shares(axes: Axes, *, along_x: bool) -> None:
    """Limits of an axis of shares: no further than just beyond 0 and 1."""
    low, high = axes.get_xlim() if along_x else axes.get_ylim()
    change = axes.set_xlim if along_x else axes.set_ylim
    change(max(low, -0.02), min(high, 1.02))


def wrap_title(text: str) -> str:
    """A text over the whole width, on as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, COLUMNS))


_LEGEND_ROW = 0.17
"""Inches."""


def _legend_grid(styles: dict[str, Style]) -> tuple[list[str], int]:
    """Names of a legend, the long ones wrapped, and the columns that they leave room for."""
    names = [wrap_label(label, 34) for label in styles]
    longest = max(len(line) for name in names for line in name.splitlines())
    return names, max(1, min(len(names), COLUMNS // (8 + longest)))
