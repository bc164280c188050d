"""A report as a table on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .goals import GOALS, keeps
from .measurement import Result
from .report import Report

LOAD = {"requests": ",.0f", "rate": "g", "goodput": ".3f", "in_flight": ".1f", "core_share": ".2f"}
"""What is shown of the load, and how."""

KEPT, MISSED = ("✓", "green"), ("✗", "red")


def results_table(report: Report) -> Table:
    """Each result with its spread, and with its goals or, if there is one, the baseline."""
    compared = any(result.baseline is not None for result in report.results)
    table = _table("median", "range", *(("baseline", "gain") if compared else ("must", "aim")))
    for result in report.results:
        # "1.9 M/s": what is counted is said by the name, and the table stays within 80 columns.
        unit = "/s" if result.unit.endswith("/s") else result.unit
        value = f"{short(result.value)} {unit}".replace(" /", "/")
        cells: list[str | Text] = [result.name, value, spread(result)]
        goal = GOALS.get(result.name)
        if compared:
            cells.append("" if result.baseline is None else short(result.baseline))
            cells.append("" if result.gain is None else f"×{result.gain:.2f}")
        elif goal:
            for bound in goal:
                kept = bound is not None and keeps(result, bound)
                cells.append(
                    "" if bound is None else Text.assemble(f"{short(bound)} ", KEPT if kept else MISSED)
                )
        table.add_row(*cells)
    return table


def load_table(report: Report) -> Table | None:
    """What the simulated clusters were doing; None if none was measured."""
    rows = [result for result in report.results if "goodput" in result.details]
    if not rows:
        return None
    table = _table("requests", "requests\nper s", "goodput", "mean in\nflight", "share of\nthe core")
    for result in rows:
        about = result.details
        table.add_row(result.name, *(format(about[key], form) if key in about else "" for key, form in LOAD.items()))
    return table


def spread(result: Result) -> str:
    """Lowest and highest value, or a dash if there was one repeat."""
    if result.repeats == 1:
        return "–"
    low, high = short(result.min), short(result.max)
    # The letter is said once if both have it.
    return f"{low.removesuffix(high[-2:])}–{high}" if high[-1].isalpha() else f"{low}–{high}"


def short(value: float) -> str:
    """A value in three digits or so: 5.61 M, 112 k, 0.385."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g} k"
    if abs(value) >= 1e3:
        return f"{value:.4g}"
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.2g}"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("benchmark", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
