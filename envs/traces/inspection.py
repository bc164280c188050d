"""A trace file as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .drawing import length_line, rate_line
from .file import TraceFile
from .statistics import QUANTILES, Lengths, Statistics

if TYPE_CHECKING:
    from rich.table import Table


def tables(file: TraceFile, seed: int = 0) -> list[Table]:
    """What the file is, how its requests arrive, and how long they are.

    Quantised arrivals are spread first, as `prepare` would.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    arrival = file.spread_arrivals(seed=seed)
    found = Statistics.of(arrival, file.prompt, file.output)
    odd = file.oddities

    about = _pairs("trace file")
    about.add_row("file", Text(file.path))
    about.add_row("format", file.format)
    about.add_row("rows", f"{odd.rows:,}")
    for words, count in (
        ("without tokens, dropped", odd.failed),
        ("out of order, sorted", odd.unsorted),
        ("with the timestamp of the one above", odd.duplicates),
        ("blank lines", odd.blank),
        ("lines ending in CRLF", odd.crlf),
    ):
        if count:
            about.add_row(words, f"{count:,}")
    if odd.byte_order_mark:
        about.add_row("byte-order mark", "yes")
    if file.prefix_ids is not None:
        about.add_row("prefix blocks", f"{len(file.prefix_ids):,} of {file.prefix_tokens} tokens")
    if file.families != ("trace",):
        about.add_row("families", Text(", ".join(file.families)))

    arrivals = _pairs("\narrivals")
    arrivals.add_row("duration", f"{found.duration_s:,.1f} s")
    arrivals.add_row("rate", f"{found.rate:.3f} per s")
    arrivals.add_row("CV of gaps", _number(found.cv, " (Poisson: 1)"))
    for window, value in found.dispersion.items():
        arrivals.add_row(f"index of dispersion, {window} s", _number(value, " (Poisson: 1)"))
    if file.quantised:
        arrivals.add_row("timestamps", "quantised; here spread at random within their quantum")
    arrivals.add_row("rate over time, 0 to peak", rate_line(arrival))

    lengths = Table(box=SIMPLE_HEAD, title="\nlengths", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("tokens", "mean", "min", *(f"P{q * 100:g}" for q in QUANTILES), "max"):
        lengths.add_column(name, justify="left" if name == "tokens" else "right")
    lengths.add_row("prompt", *_cells(found.prompt))
    lengths.add_row("output", *_cells(found.output))

    shapes = _pairs("\nshapes")
    shapes.add_row("prompts, 1 to max, logarithmic", length_line(file.prompt))
    shapes.add_row("outputs, 1 to max, logarithmic", length_line(file.output))
    shapes.add_row("correlation of prompt and output", _number(found.correlation))
    return [about, arrivals, lengths, shapes]


def _pairs(title: str) -> Table:
    """A table of what is measured and its value, without lines."""
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left", show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table


def _cells(lengths: Lengths) -> list[str]:
    middle = [f"{q:,.0f}" for q in lengths.quantiles]
    return [f"{lengths.mean:,.1f}", f"{lengths.least:,}", *middle, f"{lengths.most:,}"]


def _number(value: float | None, note: str = "") -> str:
    return "too few requests" if value is None else f"{value:.2f}{note}"
