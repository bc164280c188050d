"""The comparison as a picture: goodput per policy with its interval and its traces."""

from __future__ import annotations

import hashlib
import io
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..policies.policy_text import policy_name
from .runs import RESULTS_SCHEMA, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .comparison import Comparison
    from .statistics import Estimate

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision tell apart (yellow left out: too pale)."""

KNOWN = (
    "marginal-cost",
    "round-robin",
    "least-loaded",
    "length-threshold",
    "size-interval",
    "random",
    "linear",
)
"""Policies with a colour of their own, the same in every picture."""


def policy_colour(label: str) -> str:
    """Colour of a policy, the same in every picture."""
    name = policy_name(label)
    if name in KNOWN:
        return PALETTE[KNOWN.index(name)]
    return PALETTE[hashlib.sha256(name.encode()).digest()[0] % len(PALETTE)]


def draw_goodput(comparison: Comparison, title: str, path: Path) -> Path:
    """Draws goodput per policy, and beside it the difference to the baseline, paired by trace.

    A diamond is the mean, a bar the interval, a dot one trace; the dotted line is the ceiling.

    Args:
        comparison: the numbers.
        title: above the picture.
        path: PNG file.

    Raises:
        OSError: it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = comparison.lines
    figure = Figure(figsize=(9.0, 1.9 + 0.55 * len(lines)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
    for place, line in enumerate(lines):
        colour = policy_colour(line.label)
        _draw_estimate(left, place, line.goodput, colour, 1.0, "{:.3f}")
        if line.difference is not None:
            _draw_estimate(right, place, line.difference, colour, 100.0, "{:+.1f}")
    left.axvline(comparison.ceiling, color="0.4", linestyle=":", linewidth=1.2)
    right.axvline(0.0, color="0.4", linewidth=1.0)
    left.set_yticks(range(len(lines)), [line.label for line in lines])
    left.set_ylim(len(lines) - 0.5, -0.6)
    left.set_xlabel("goodput (share of requests that meet both targets)")
    right.set_xlabel(f"difference to {comparison.baseline} (points)")
    for axes in (left, right):
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=9.5, x=0.01, ha="left")
    figure.supxlabel(
        f"dots: traces; bars: interval ({comparison.interval}); dotted: ceiling", fontsize=7, color="0.35"
    )
    save_png(figure, path)
    return path


def save_png(figure: Figure, path: Path) -> None:
    """Writes a figure; the same figure gives the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    image = io.BytesIO()
    metadata = {"Software": None, "Description": f"results schema {RESULTS_SCHEMA}"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # A name in another script is drawn as boxes.
        figure.savefig(image, format="png", metadata=metadata)
    write_atomically(path, image.getvalue())


def _draw_estimate(axes: Axes, place: int, estimate: Estimate, colour: str, scale: float, words: str) -> None:
    values = [scale * value for value in estimate.values]
    axes.plot(values, [place + 0.22] * len(values), "o", color=colour, markersize=3, alpha=0.35)
    if estimate.low is not None and estimate.high is not None:
        ends = [scale * estimate.low, scale * estimate.high]
        axes.plot(ends, [place, place], color=colour, linewidth=3, alpha=0.6)
    mean = scale * estimate.mean
    axes.plot([mean], [place], "D", color=colour, markersize=6)
    axes.annotate(
        words.format(mean), (mean, place), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8
    )
