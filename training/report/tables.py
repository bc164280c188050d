"""The tables of the page: every number of the summaries, policy by policy, as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..comparison import mean_over_runs
from ..results import Results
from ..statistics import Estimate
from ..summary import Quantiles, Summary
from ..table import interval, number, points
from .groups import groups
from .material import Material
from .slo_scale import goodput_at_scales

Cell = Callable[[list[Summary]], str]


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        name: one word, for links.
        title: above it.
        note: what a reader must know, one or two sentences.
        columns: headings after the first.
        rows: the first column, mostly a policy, and the cells; rows without a policy of their own (ceilings) come
            first.
        best: row to stress, or None.
        first: heading of the first column.
    """

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    best: int | None = None
    first: str = "policy"


def goodput_table(material: Material) -> Table:
    """Goodput with intervals, differences to the baseline, and the requests behind them."""
    comparison = material.comparison
    rows = []
    for line in comparison.lines:
        summaries = _summaries(material.results, line.label)
        rows.append(
            (
                line.label,
                (
                    f"{line.goodput.mean:.4f}",
                    interval(line.goodput),
                    points(line.difference),
                    f"{sum(s.met for s in summaries):,}",
                    f"{sum(s.requests for s in summaries):,}",
                    number(mean_over_runs(summaries, lambda s: s.goodput_per_gpu), 3),
                ),
            )
        )
    means = [line.goodput.mean for line in comparison.lines]
    return Table(
        name="goodput",
        title="Goodput per policy",
        note=f"Points are hundredths of goodput. Intervals: {comparison.interval}.",
        columns=(
            *("goodput", "interval", f"points to {comparison.baseline}", "met", "requests"),
            "met per second and GPU",
        ),
        rows=tuple(rows),
        best=means.index(max(means)) if len(means) > 1 else None,
    )


def miss_table(material: Material) -> Table:
    """How many requests missed which target, and how many of them failed."""
    return _table(
        material,
        "misses",
        "Misses by target",
        "Requests of all runs; failed and rejected ones are among those that missed both.",
        {
            "TTFT alone": lambda runs: f"{sum(s.missed.ttft for s in runs):,}",
            "TPOT alone": lambda runs: f"{sum(s.missed.tpot for s in runs):,}",
            "both": lambda runs: f"{sum(s.missed.both for s in runs):,}",
            "failed": lambda runs: f"{sum(s.failed for s in runs):,}",
            "rejected": lambda runs: f"{sum(s.rejected for s in runs):,}",
        },
    )


def group_table(material: Material) -> Table:
    """Goodput of each class and family with its interval; the ceilings in the first row."""
    found = groups(material)
    ceiling = ("ceiling", tuple(number(group.ceiling, 4) for group in found))
    rows = [(label, tuple(_with_interval(group.goodput[label]) for group in found)) for label in material.labels]
    return Table(
        name="groups",
        title="Goodput by class and family",
        note="The ceiling of a group is the share of its requests that meets both targets alone on the empty cluster.",
        columns=tuple(f"{group.kind} {group.name}" for group in found),
        rows=(ceiling, *rows),
    )


def scale_table(material: Material) -> Table:
    """Goodput with all targets multiplied by a factor."""
    results = material.results
    curves = {label: goodput_at_scales(results, label) for label in material.labels}
    return Table(
        name="scales",
        title="Goodput against the scale of the SLOs",
        note="All targets multiplied by the factor; the records stay the same.",
        columns=tuple(f"× {scale:g}" for scale in curves[material.labels[0]]),
        rows=tuple((label, tuple(f"{e.mean:.3f}" for e in curve.values())) for label, curve in curves.items()),
    )


def delay_tables(material: Material) -> list[Table]:
    """Quantiles of TTFT, TPOT and E2E."""
    note = "Mean over the seeds of each seed's quantile; a failed or rejected request counts as infinite."
    kinds = (
        ("ttft", "TTFT, seconds", 1.0, 3, note),
        ("tpot", "TPOT, milliseconds", 1e3, 2, f"{note} Requests of one output token are left out."),
        ("e2e", "E2E, seconds", 1.0, 2, note),
        ("slowdown", "Slowdown", 1.0, 2, f"E2E divided by E2E alone on the empty cluster. {note}"),
    )
    return [
        _table(material, name, title, words, {f"P{q}": _quantile(name, f"p{k}", unit, digits) for q, k in _QUANTILES})
        for name, title, unit, digits, words in kinds
    ]


def tail_table(material: Material) -> Table:
    """Stalls and the far end of the delays."""
    return _table(
        material,
        "tail",
        "Stalls and the far end",
        "P99 ITL is estimated from each request's mean and longest gap; longest stall and largest TTFT are those of "
        "all runs, the others means over the seeds.",
        {
            "P99 ITL, ms": lambda runs: number(1e3 * mean_over_runs(runs, lambda s: s.itl_p99), 1),
            "longest stall, s": lambda runs: number(max(s.max_stall for s in runs), 2),
            "beyond 3 × the targets": lambda runs: number(mean_over_runs(runs, lambda s: s.beyond_3x), 4),
            "largest TTFT, s": lambda runs: number(max(s.max_delay for s in runs), 2),
            "mean slowdown": lambda runs: number(mean_over_runs(runs, lambda s: s.slowdown_mean), 2),
            "preemptions per request": lambda runs: number(mean_over_runs(runs, lambda s: s.preemptions), 4),
        },
    )


def balance_table(material: Material) -> Table:
    """How evenly each pool was used over the whole window."""
    cells: dict[str, Cell] = {}
    for role in material.results.description.pools:
        for what, words in (("count", "requests"), ("token", "tokens")):
            for key, sign in (("cv", "CV"), ("max", "max/mean")):
                cells[f"{role} {words}, {sign}"] = _balance(role, f"{what}_{key}")
    return _table(
        material,
        "balance",
        "Balance over the whole window",
        "CV: coefficient of variation over the instances of a pool; 0 when all got the same. Tokens: prompt tokens "
        "on prefill instances, output tokens elsewhere.",
        cells,
    )


_QUANTILES = (("50", "50"), ("90", "90"), ("99", "99"), ("99.9", "999"))


def _table(material: Material, name: str, title: str, note: str, cells: dict[str, Cell]) -> Table:
    summaries = {label: _summaries(material.results, label) for label in material.labels}
    rows = tuple((label, tuple(cell(runs) for cell in cells.values())) for label, runs in summaries.items())
    return Table(name, title, note, tuple(cells), rows)


def _quantile(name: str, key: str, unit: float, digits: int) -> Cell:
    def read(summary: Summary) -> float:
        quantiles: Quantiles = getattr(summary, name)
        return unit * float(getattr(quantiles, key))

    return lambda runs: number(mean_over_runs(runs, read), digits)


def _balance(role: str, key: str) -> Cell:
    return lambda runs: number(mean_over_runs(runs, lambda s: float(getattr(s.balance[role], key))), 3)


def _summaries(results: Results, label: str) -> list[Summary]:
    return [run.summary for run in results.runs[label]]


def _with_interval(estimate: Estimate) -> str:
    text = number(estimate.mean, 3)
    return f"{text} ({interval(estimate)})" if estimate.has_interval else text
