"""Pictures of a trace: a PNG, and a few lines of blocks for the terminal."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..cluster import PS_PER_S

Ints = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]

BLOCKS = " ▁▂▃▄▅▆▇█"


def draw(path: str | Path, title: str, arrival: Ints, prompt: Lengths, output: Lengths) -> Path:
    """Draws the rate over time, the gaps and the lengths, and writes the figure.

    Args:
        path: .png, .pdf or .svg.
        title: over the figure.
        arrival: (N,) ps, sorted.
        prompt: (N,) tokens.
        output: (N,) tokens.

    Raises:
        ValueError: the file cannot be written, or has another ending.
    """
    from matplotlib.figure import Figure

    target = Path(path)
    if target.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{target}: ends in {target.suffix!r}; a plot is written as .png, .pdf or .svg")
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title, parse_math=False)  # A file name may hold dollars.
    (over_time, gaps), (lengths, tails) = figure.subplots(2, 2)

    seconds = (arrival - arrival[0]) / PS_PER_S
    span = max(float(seconds[-1]), 1e-9)
    counts, edges = np.histogram(seconds, bins=min(200, max(10, len(arrival) // 20)), range=(0.0, span))
    over_time.stairs(counts / np.diff(edges), edges, fill=True, alpha=0.6)
    over_time.set(xlabel="time (s)", ylabel="requests per second", title="arrivals")

    between = np.sort(np.diff(seconds))
    above = between[between > 0]
    if len(above):
        gaps.loglog(above, 1 - np.arange(len(above)) / len(above), label="trace")
        poisson = np.geomspace(above[0], above[-1], 200)
        gaps.loglog(poisson, np.maximum(np.exp(-poisson / between.mean()), 1e-6), "--", label="Poisson")
        gaps.set_ylim(bottom=0.5 / len(above))
        gaps.legend()
    gaps.set(xlabel="gap (s)", ylabel="share of gaps above", title="gaps between arrivals")

    top = max(2, int(prompt.max()), int(output.max()))
    bins = np.geomspace(1, top, 50)
    for name, values in (("prompt", prompt), ("output", output)):
        lengths.hist(values, bins=bins, alpha=0.5, label=name)
        tails.semilogx(np.sort(values), (np.arange(len(values)) + 1) / len(values), label=name)
    lengths.set_xscale("log")
    lengths.set(xlabel="tokens", ylabel="requests", title="lengths")
    tails.set(xlabel="tokens", ylabel="share of requests up to", title="lengths, cumulated")
    lengths.legend()
    tails.legend()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # A name in another script is drawn as boxes.
            figure.savefig(target, dpi=120)
    except OSError as error:
        raise ValueError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def rate_line(arrival: Ints, width: int = 45) -> str:
    """The rate over time as a line of blocks, scaled to its peak."""
    span = int(arrival[-1] - arrival[0])
    if span == 0:
        return BLOCKS[-1]
    counts, _ = np.histogram(arrival - arrival[0], bins=width, range=(0, span))
    return _blocks(counts)


def length_line(values: Lengths, width: int = 45) -> str:
    """The distribution of a length from 1 to its maximum, on a logarithmic scale, as a line of blocks."""
    counts, _ = np.histogram(values, bins=np.geomspace(1, max(2, int(values.max())), width + 1))
    return _blocks(counts)


def _blocks(counts: npt.NDArray[np.intp]) -> str:
    levels = np.ceil(counts / max(1, int(counts.max())) * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[level] for level in levels)
