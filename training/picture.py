"""Pictures: one width, one look, and the same bytes for the same data."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .policy_style import Style
from .runs import RESULTS_SCHEMA, write_atomically
from .table import wrap_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH = 8.0
"""Width of a picture, inches; with the sizes below its text is readable at 700 pixels."""

DPI = 150
TEXT, SMALL = 9.0, 8.0
"""Sizes of text, points."""

GREY, PALE = "#595959", "#E3E3E3"
"""For what is no policy: targets, ceilings, notes; and for grids."""

COLUMNS = 98
"""Characters of the small text on a line of a picture."""


@contextmanager
def drawing() -> Iterator[None]:
    """Draws with our own settings: those of the user would change the bytes."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        warnings.filterwarnings("ignore", "Glyph .* missing")  # A name in another script is drawn as boxes.
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # A very long name leaves no room.
        matplotlib.rcParams.update(
            {
                "font.size": TEXT,
                "axes.titlesize": TEXT,
                "axes.labelsize": TEXT,
                "xtick.labelsize": SMALL,
                "ytick.labelsize": SMALL,
                "legend.fontsize": SMALL,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.edgecolor": GREY,
                "axes.axisbelow": True,
                "grid.color": PALE,
                "hatch.linewidth": 0.6,
                "lines.linewidth": 1.6,
                "text.parse_math": False,  # A label may hold dollars.
            }
        )
        yield


def new_figure(height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure of our width; call and fill it inside `drawing()`.

    Args:
        height: inches.
        layout: matplotlib's layout engine; None when places are given by hand.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG, in 256 colours if they suffice, with the schema version and without a time stamp."""
    from PIL.Image import Dither, Quantize, frombuffer
    from PIL.PngImagePlugin import PngInfo

    canvas: Any = figure.canvas
    with drawing():
        canvas.draw()
    size = canvas.get_width_height(physical=True)
    image = frombuffer("RGBA", size, bytes(canvas.buffer_rgba()), "raw", "RGBA", 0, 1).convert("RGB")
    notes, content = PngInfo(), io.BytesIO()
    notes.add_text("Description", f"results schema {RESULTS_SCHEMA}")
    # A third of the bytes; with too many hues for it the policies' colours would suffer.
    small = image.quantize(256, Quantize.MEDIANCUT, dither=Dither.NONE)
    error = np.abs(np.asarray(small.convert("RGB"), np.int16) - np.asarray(image, np.int16)).max(axis=2)
    chosen = small if float((error > _VISIBLE).mean()) < _TOLERATED else image
    chosen.save(content, "png", pnginfo=notes, dpi=(DPI, DPI))
    return content.getvalue()


def save_png(figure: Figure, path: Path) -> None:
    """Writes a figure; the same figure gives the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(path, png_bytes(figure))


_VISIBLE, _TOLERATED = 16, 1e-3
"""Error of a colour (of 255) that shows, and the share of pixels that may have it: edges of letters."""


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


def set_log_ticks(axis: Axis, words: Callable[[float], str]) -> None:
    """Ticks of a logarithmic axis in plain numbers: at 1, 2 and 5 where there is room, else at powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))


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
