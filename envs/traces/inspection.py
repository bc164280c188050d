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
    from rich.table import Table

    arrival = file.spread_arrivals(seed=seed)
    found = Statistics.of(arrival, file.prompt, file.output)
    odd = file.oddities

    about = Table("file", title="trace file", title_justify="left")
    about.add_column(file.path, overflow="fold")
    about.add_row("format", file.format)
    about.add_row("rows", f"{odd.rows:,}")
    for words, count in (
        ("rows without tokens, dropped", odd.failed),
        ("rows out of order, sorted", odd.unsorted),
        ("rows with the timestamp of the one above", odd.duplicates),
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
        about.add_row("families", ", ".join(file.families))

    arrivals = Table("arrivals", "", title_justify="left")
    arrivals.add_row("duration", f"{found.duration_s:,.1f} s")
    arrivals.add_row("rate", f"{found.rate:.3f} per s")
    arrivals.add_row("CV of gaps", _number(found.cv))
    for window, value in found.dispersion.items():
        arrivals.add_row(f"index of dispersion, {window} s", _number(value))
    if file.quantised:
        arrivals.add_row("timestamps", "quantised; spread at random within their quantum for the above")
    arrivals.add_row("rate over time", rate_line(arrival))

    lengths = Table("tokens", "mean", "min", title_justify="left")
    for q in QUANTILES:
        lengths.add_column(f"P{q * 100:g}", justify="right")
    lengths.add_column("max", justify="right")
    lengths.add_row("prompt", *_cells(found.prompt))
    lengths.add_row("output", *_cells(found.output))

    shapes = Table("", "1 to max, logarithmic", title_justify="left")
    shapes.add_row("prompt", length_line(file.prompt))
    shapes.add_row("output", length_line(file.output))
    shapes.add_row("correlation", _number(found.correlation))
    return [about, arrivals, lengths, shapes]


def _cells(lengths: Lengths) -> list[str]:
    middle = [f"{q:,.0f}" for q in lengths.quantiles]
    return [f"{lengths.mean:,.1f}", f"{lengths.least:,}", *middle, f"{lengths.most:,}"]


def _number(value: float | None) -> str:
    return "too few requests" if value is None else f"{value:.2f}"
