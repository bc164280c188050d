"""The comparison as two tables on the terminal, narrow enough for 80 columns."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .comparison import Comparison
from .statistics import Estimate


def goodput_table(comparison: Comparison) -> Table:
    """Goodput, its interval, the difference to the baseline in points (hundredths), and by class."""
    table = _table(("goodput", "interval", f"points to\n{comparison.baseline}", "tight", "loose"))
    best = max(line.goodput.mean for line in comparison.lines)
    for line in comparison.lines:
        table.add_row(
            line.label,
            f"{line.goodput.mean:.3f}",
            interval(line.goodput),
            points(line.difference),
            number(line.tight, 3),
            number(line.loose, 3),
            style="bold" if line.goodput.mean == best and len(comparison.lines) > 1 else "",
        )
    return table


def delay_table(comparison: Comparison) -> Table:
    """Delays (means over the seeds of each seed's quantile), the longest stall, balance and failures."""
    table = _table(
        ("TTFT\nP50 s", "TTFT\nP99 s", "TPOT\nP99 ms", "longest\nstall s", "count\nCV", "token\nCV", "failed")
    )
    for line in comparison.lines:
        table.add_row(
            line.label,
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
        f"{comparison.requests:,} requests measured per policy. Ceiling {comparison.ceiling:.3f}: the share "
        f"that meets both targets alone on the empty cluster. Intervals: {comparison.interval}. CV: "
        "coefficient of variation over the instances that decode."
    )


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


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
