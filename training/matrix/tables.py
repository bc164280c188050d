"""A matrix as tables: a row per condition, a column per policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..description import seeds_in_words
from ..report.tables import Table
from ..scenario_check import rounded
from ..table import number, points
from .cells import Cell, Matrix, Row

SIGNIFICANT = "●"
"""Stands at a difference whose interval excludes zero."""


def points_table(matrix: Matrix, *, short: bool = False) -> Table:
    """Differences to the reference in points, after the ceiling and the reference's goodput.

    Args:
        matrix: the numbers.
        short: a mark where the interval excludes zero, in place of the interval.
    """
    others = matrix.labels[1:]
    rows = []
    for row in matrix.rows:
        first = (number(row.ceiling, 3), number(row.cells[matrix.reference].goodput.mean, 3))
        cells = tuple((short_points if short else _points)(row.cells[label]) for label in others)
        rows.append((row.name, (*first, *cells)))
    mark = f" {SIGNIFICANT}: the interval excludes zero." if short else ""
    return Table(
        name="points",
        title=f"Points to {matrix.reference}",
        note=f"Points: hundredths of goodput, on the same traces. {intervals(matrix)}{mark}",
        columns=("ceiling", matrix.reference, *others),
        rows=tuple(rows),
        first="condition",
    )


def worst_table(matrix: Matrix) -> Table:
    """The SLO class or family that loses most against the reference."""
    return _grid(
        matrix,
        "worst",
        "The class or family that loses most",
        f"Of all SLO classes and workload families the one whose goodput lies lowest against {matrix.reference}, in "
        "points, mean over the seeds.",
        lambda cell: f"{cell.worst.group} {100 * cell.worst.difference:+.1f}" if cell.worst else "–",
    )


def ttft_table(matrix: Matrix) -> Table:
    """P99.9 of TTFT against the reference's."""
    return _grid(
        matrix,
        "ttft",
        "P99.9 of TTFT",
        f"In seconds, mean over the seeds of each seed's quantile, and in brackets over that of {matrix.reference}.",
        lambda cell: _with_ratio(cell.ttft_p999, cell.ttft_ratio, 2),
        reference=True,
    )


def slowdown_table(matrix: Matrix) -> Table:
    """P99.9 of the slowdown against the reference's."""
    return _grid(
        matrix,
        "slowdown",
        "P99.9 of the slowdown",
        "E2E over E2E alone on the empty cluster; mean over the seeds of each seed's quantile, and in brackets over "
        f"that of {matrix.reference}.",
        lambda cell: _with_ratio(cell.slowdown_p999, cell.slowdown_ratio, 1),
        reference=True,
    )


def beyond_table(matrix: Matrix) -> Table:
    """The share of requests that missed three times their targets."""
    return _grid(
        matrix,
        "beyond",
        "Beyond three times the targets",
        "Per cent of the requests that would have missed targets three times as large, mean over the seeds.",
        lambda cell: number(100 * cell.beyond_3x, 2),
        reference=True,
    )


def condition_table(matrix: Matrix) -> Table:
    """What each condition is."""
    rows = []
    for row in matrix.rows:
        setting, scenario = row.evaluation.setting, row.part.scenario
        rate = scenario.rate if scenario.rate is not None else setting.traffic.own_rate
        more = []
        if scenario.constants_scale != 1:
            more.append(f"constants × {scenario.constants_scale:g}")
        if setting.cluster.routers > 1:
            more.append(f"{setting.cluster.routers} routers ({setting.cluster.dealing})")
        cells = (
            setting.traffic.name,
            setting.cluster.name,
            f"{rate:.4g}" if rate is not None else "–",
            str(setting.predictor),
            "one trace" if setting.traffic.single else seeds_in_words(row.part.seeds),
            f"{setting.duration_s:.0f}",
            f"{row.requests:,}",
            ", ".join(more) or "–",
        )
        rows.append((row.name, cells))
    columns = ("workload", "cluster", "requests/s", "predictor", "seeds", "window s", "requests", "besides")
    return Table("conditions", "Conditions", "", columns, tuple(rows), first="condition")


def policy_table(matrix: Matrix) -> Table:
    """Which policy stands behind each name in each condition, where its text is not its name."""
    return _grid(
        matrix,
        "texts",
        "Policies by condition",
        "The text of each policy, which may name a file of the condition's own.",
        lambda cell: cell.text,
        reference=True,
    )


def csv_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """One row per condition and policy; goodput and differences as fractions of the requests, times in seconds."""
    rows = []
    for row in matrix.rows:
        setting, scenario = row.evaluation.setting, row.part.scenario
        told = {
            "condition": row.name,
            "workload": setting.traffic.name,
            "cluster": setting.cluster.name,
            "rate": scenario.rate if scenario.rate is not None else setting.traffic.own_rate,
            "predictor": str(setting.predictor),
            "first_seed": row.part.seeds[0],
            "seeds": len(row.part.seeds),
            "duration_s": rounded(setting.duration_s),
            "requests": row.requests,
            "ceiling": rounded(row.ceiling),
            "reference": matrix.reference,
        }
        rows += [told | {"policy": label} | _numbers(row.cells[label]) for label in matrix.labels]
    return rows


def intervals(matrix: Matrix) -> str:
    """How the intervals were made, in a sentence."""
    return f"Intervals: {'; '.join(dict.fromkeys(row.interval for row in matrix.rows))}."


def short_points(cell: Cell) -> str:
    """A difference in points, with a mark where its interval excludes zero."""
    if cell.difference is None:
        return "–"
    return f"{100 * cell.difference.mean:+.1f}" + (f" {SIGNIFICANT}" if cell.difference.excludes_zero else "")


def _points(cell: Cell) -> str:
    return points(cell.difference)


def _grid(
    matrix: Matrix, name: str, title: str, note: str, read: Callable[[Cell], str], *, reference: bool = False
) -> Table:
    labels = matrix.labels if reference else matrix.labels[1:]

    def cells(row: Row) -> tuple[str, ...]:
        return tuple(read(row.cells[label]) for label in labels)

    rows = tuple((row.name, cells(row)) for row in matrix.rows)
    return Table(name, title, note, labels, rows, first="condition")


def _with_ratio(value: float, ratio: float, digits: int) -> str:
    return f"{number(value, digits)} ({number(ratio, 2)})"


def _numbers(cell: Cell) -> dict[str, Any]:
    goodput, difference, worst = cell.goodput, cell.difference, cell.worst
    return {
        "text": cell.text,
        "policy_hash": cell.hash,
        "goodput": rounded(goodput.mean),
        "goodput_low": rounded(goodput.low),
        "goodput_high": rounded(goodput.high),
        "difference": rounded(difference.mean if difference else None),
        "difference_low": rounded(difference.low if difference else None),
        "difference_high": rounded(difference.high if difference else None),
        "worst_group": worst.group if worst else "",
        "worst_difference": rounded(worst.difference if worst else None),
        "ttft_p999_s": rounded(cell.ttft_p999),
        "ttft_p999_ratio": rounded(cell.ttft_ratio),
        "slowdown_p999": rounded(cell.slowdown_p999),
        "slowdown_p999_ratio": rounded(cell.slowdown_ratio),
        "beyond_3x": rounded(cell.beyond_3x),
    }
