"""What all pictures share: one width, one look, colours that all eyes tell apart, the same bytes for the same data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH = 8.0
"""Width of a picture, inches; with the sizes below its text is readable at 700 pixels."""

DPI = 150
TEXT, SMALL = 9.0, 8.0
"""Sizes of text, points."""

GREY, PALE = "#595959", "#E3E3E3"
"""For what is no policy: targets, ceilings, notes; and for grids."""

VERMILLION, SKY, GREEN, PURPLE = "#D55E00", "#56B4E9", "#009E73", "#CC79A7"
ORANGE, BLUE, BLACK = "#E69F00", "#0072B2", "#000000"

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Okabe and Ito's colours, which people with any colour vision tell apart (yellow left out: too pale)."""


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


def png_bytes(figure: Figure, description: str) -> bytes:
    """The figure as PNG, in 256 colours if they suffice, and without a time stamp.

    Args:
        figure: made inside `drawing()`.
        description: kept in the file.
    """
    from PIL.Image import Dither, Quantize, frombuffer
    from PIL.PngImagePlugin import PngInfo

    canvas: Any = figure.canvas
    with drawing():
        canvas.draw()
    size = canvas.get_width_height(physical=True)
    image = frombuffer("RGBA", size, bytes(canvas.buffer_rgba()), "raw", "RGBA", 0, 1).convert("RGB")
    notes, content = PngInfo(), io.BytesIO()
    notes.add_text("Description", description)
    # A third of the bytes; with too many hues for it the policies' colours would suffer.
    small = image.quantize(256, Quantize.MEDIANCUT, dither=Dither.NONE)
    error = np.abs(np.asarray(small.convert("RGB"), np.int16) - np.asarray(image, np.int16)).max(axis=2)
    chosen = small if float((error > _VISIBLE).mean()) < _TOLERATED else image
    chosen.save(content, "png", pnginfo=notes, dpi=(DPI, DPI))
    return content.getvalue()

_VISIBLE, _TOLERATED = 16, 1e-3
"""Error of a colour (of 255) that shows, and the share of pixels that may have it: edges of letters."""


def set_log_ticks(axis: Axis, words: Callable[[float], str]) -> None:
    """Ticks of a logarithmic axis in plain numbers: at 1, 2 and 5 where there is room, else at powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
