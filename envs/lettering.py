"""Text on pixel images: the printable ASCII characters of a monospaced font, drawn once and then copied."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

_FIRST, _LAST = 32, 126


def write_text(image: Pixels, x: int, y: int, text: str, size: int, colour: Colour, *, align: str = "left") -> None:
    """Writes a line of text into an image; what lies outside is cut off.

    Args:
        image: (H, W, 3).
        x: left edge of the text; right edge where `align` is "right".
        y: top of the line, at least 0.
        text: printable ASCII; other characters become question marks.
        size: height of the line, pixels.
        colour: red, green, blue.
        align: left or right.
    """
    ink = _line(text, size)
    left = x - ink.shape[1] if align == "right" else x
    if left < 0:
        ink, left = ink[:, -left:], 0
    target = image[y : y + size, left : left + ink.shape[1]]
    ink = ink[: target.shape[0], : target.shape[1], None]
    target += ((np.array(colour, np.int32) - target) * ink >> 8).astype(np.uint8)  # modulo 256, so it may go down


def text_width(text: str, size: int) -> int:
    """Width of a line of text, pixels."""
    return int(_line(text, size).shape[1])


@lru_cache(maxsize=4096)
def _line(text: str, size: int) -> npt.NDArray[np.int32]:
    """Coverage of a line, (size, width) between 0 and 256."""
    letters = _letters(size)
    places = [ord(c) - _FIRST if _FIRST <= ord(c) <= _LAST else ord("?") - _FIRST for c in text]
    if not places:
        return np.zeros((size, 0), np.int32)
    return np.concatenate([letters[place] for place in places], axis=1)


@lru_cache(maxsize=16)
def _letters(size: int) -> npt.NDArray[np.int32]:
    """Coverage of each character, (95, size, width), drawn by matplotlib, whose own font is the same everywhere."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    dpi, count = 72, _LAST - _FIRST + 1
    points = size / 1.3  # leaves room below and above
    width = round(0.602 * points)  # the advance of DejaVu Sans Mono
    font = FontProperties(family="DejaVu Sans Mono", size=points)
    figure = Figure(figsize=(count * width / dpi, size / dpi), dpi=dpi)
    canvas = FigureCanvasAgg(figure)
    for place in range(count):
        middle = (place + 0.5) / count
        figure.text(middle, 0.27, chr(_FIRST + place), fontproperties=font, ha="center", parse_math=False)
    canvas.draw()  # type: ignore[no-untyped-call]
    shades = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    black = 255 - shades[:, :, 0].astype(np.int32)
    drawn = black + (black >> 7)  # 255 becomes 256
    return np.ascontiguousarray(drawn.reshape(size, count, width).transpose(1, 0, 2))
