"""A comparison as tables on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..measurement import Result
from ..table import short, spread
from .report import PHASES, VARIANTS, Peers

SHOWN = ("0.5", "0.9", "0.99")
"""Quantiles in the table; the CSV file has all."""


def speed_table(report: Peers) -> Table:
    """Requests per CPU second of both, and how many times faster ours is."""
    found = {result.name: result for result in report.results}
    table = _table("requests per CPU s, median and range", "Dynamo", "disaggroute", "ratio")
    for phase, words in PHASES.items():
        cells = (_cell(found[f"peers/{name}/{phase}"]) for name in ("dynamo", "disaggroute", "ratio"))
        table.add_row(words, *cells)
    starts = (_cell(found[f"peers/{name}/start-up"]) for name in ("dynamo", "disaggroute"))
    table.add_row("start-up, CPU s", *starts, "")
    return table


def delay_table(report: Peers) -> Table:
    """Quantiles of Dynamo's delays and of ours, ms, and the distances (W1: Wasserstein)."""
    table = _table("ms", *(f"P{100 * float(level):g}" for level in SHOWN), "mean", "KS", "W1", "paired")
    for delay in ("ttft", "tpot"):
        for k, (variant, words) in enumerate(VARIANTS.items()):
            distance = getattr(report.comparisons[variant], delay)
            pairs = [*(distance.quantiles[level] for level in SHOWN), distance.means]
            if not k:
                table.add_row(f"{delay.upper()}, Dynamo", *(_ms(theirs) for theirs, _ in pairs), "", "", "")
            apart = (f"{distance.ks:.4f}", _ms(distance.wasserstein), _ms(distance.paired))
            table.add_row(f"  {words}", *(_ms(ours) for _, ours in pairs), *apart)
    return table


def preemption_words(report: Peers) -> str:
    """Preemptions of all runs, in a line."""
    theirs = report.comparisons["own"].preemptions[0]
    ours = ", ".join(f"{found.preemptions[1]} ({VARIANTS[name]})" for name, found in report.comparisons.items())
    return f"preemptions: {theirs} (Dynamo), {ours}"


def _cell(result: Result) -> str:
    """Median, and the range under it."""
    value = f"× {short(result.value)}" if result.unit == "×" else short(result.value)
    return f"{value}\n{spread(result)}" if result.repeats > 1 else value


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
