"""The comparison as two tables on the terminal; from 80 columns on, all numbers show in full."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .comparison import Comparison
from .statistics import Estimate

if TYPE_CHECKING:
    from .router_study import RouterStudy
    from .scenario_check import ScenarioCheck

NARROWEST = 80
"""Columns that the tables need when policies are wrapped."""

_PIPED = 160
"""Columns for whoever reads the output from a pipe or a file: nearly every policy stays on one line."""

_BESIDE = 62
"""Columns that the numbers of either table need, at their widest, beside the policy."""


def table_console() -> Console:
    """The standard output, wide enough for every number; a pipe is as wide as $COLUMNS says, or wide."""
    console = Console(highlight=False, markup=False, emoji=False)
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = _PIPED if piped else max(console.width, NARROWEST)
    return console


def goodput_table(comparison: Comparison, width: int = NARROWEST) -> Table:
    """Goodput, its interval, the difference to the baseline in points (hundredths), and by class.

    Args:
        comparison: the numbers.
        width: columns, at least NARROWEST; a policy that is too long for them is wrapped.
    """
    baseline = wrapped(comparison.baseline)
    table = _table(("goodput", "interval", f"points to\n{baseline}", "tight", "loose"))
    best = max(line.goodput.mean for line in comparison.lines)
    for line in comparison.lines:
        table.add_row(
            wrapped(line.label, width),
            f"{line.goodput.mean:.3f}",
            interval(line.goodput),
            points(line.difference),
            number(line.tight, 3),
            number(line.loose, 3),
            style="bold" if line.goodput.mean == best and len(comparison.lines) > 1 else "",
        )
    return table


def delay_table(comparison: Comparison, width: int = NARROWEST) -> Table:
    """Delays (means over the seeds of each seed's quantile), the longest stall, balance and failures.

    Args:
        comparison: the numbers.
        width: columns, at least NARROWEST; a policy that is too long for them is wrapped.
    """
    table = _table(
        ("TTFT\nP50 s", "TTFT\nP99 s", "TPOT\nP99 ms", "longest\nstall s", "count\nCV", "token\nCV", "failed")
    )
    for line in comparison.lines:
        table.add_row(
            wrapped(line.label, width),
            number(line.ttft_p50, 3),
            number(line.ttft_p99, 3),
            number(1e3 * line.tpot_p99, 1),
            number(line.stall, 2),
            number(line.count_cv, 3),
            number(line.token_cv, 3),
            str(line.failed),
        )
    return table


def remarks(comparison: Comparison) -> str:
    """What a reader of the tables must know."""
    return (
        f"{what_counts(comparison)} Points: hundredths of goodput. CV: coefficient of variation over the instances "
        "that decode."
    )


def what_counts(comparison: Comparison) -> str:
    """What the numbers of a comparison rest on."""
    return (
        f"{comparison.requests:,} requests measured per policy. Ceiling {comparison.ceiling:.3f}: the share "
        f"that meets both targets alone on the empty cluster. Intervals: {comparison.interval}."
    )


def wrapped(label: str, width: int = NARROWEST) -> str:
    """A policy on as many lines as a table of this width needs."""
    return wrap_label(label, width - _BESIDE)


def wrap_label(label: str, room: int) -> str:
    """A policy on lines of at most `room` characters where possible, broken after a bracket or a comma."""
    lines = [""]
    for part in re.findall(r"[^(,]*[(,]?\s*", label):
        if lines[-1].strip() and len(lines[-1] + part.rstrip()) > room:
            lines.append(" ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def interval(estimate: Estimate) -> str:
    """Both ends of an interval, or a dash."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:.3f}–{estimate.high:.3f}"


def points(difference: Estimate | None) -> str:
    """A difference of goodputs in points with its interval; a dash for the baseline itself."""
    if difference is None:
        return "–"
    text = f"{100 * difference.mean:+.1f}"
    if difference.low is not None and difference.high is not None:
        text += f" ({100 * difference.low:+.1f} … {100 * difference.high:+.1f})"
    return text


def number(value: float, digits: int) -> str:
    """A number; ∞ for a delay without end, a dash where there is nothing to measure."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:.{digits}f}"


def scenario_table(check: ScenarioCheck, width: int = NARROWEST) -> Table:
    """Goodput, the gain on round robin in points, and the shares of requests that missed which target.

    Args:
        check: what a check of a scenario found.
        width: columns, at least NARROWEST; a policy that is too long for them is wrapped.
    """
    baseline = wrapped(check.comparison.baseline)
    columns = ("goodput", f"points to\n{baseline}", "missed\nTTFT %", "missed\nTPOT %", "missed\nboth %")
    table = _table(columns)
    for line in check.comparison.lines:
        missed = check.misses[line.label]
        table.add_row(
            wrapped(line.label, width),
            f"{line.goodput.mean:.3f}",
            points(line.difference),
            *(number(100 * share, 1) for share in (missed.ttft, missed.tpot, missed.both)),
        )
    return table


def router_table(found: RouterStudy, width: int = NARROWEST) -> Table:
    """Goodput behind the fewest routers, and its change in points behind more.

    Args:
        found: a study of several routers.
        width: columns, at least NARROWEST; a policy that is too long for them is wrapped.
    """
    few, *more = found.counts
    table = _table((f"goodput\n{few} router{'s' if few > 1 else ''}", *(f"change\n{count} routers" for count in more)))
    for label in found.labels:
        changes = (points(found.change[label][count]) for count in more)
        table.add_row(wrapped(label, width), f"{found.goodput[label][few].mean:.3f}", *changes)
    return table


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("policy", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
