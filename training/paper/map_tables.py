"""A map as tables: findings by points, axis by axis with intervals, and the commands."""

from __future__ import annotations

import shlex
from typing import Any

from ..description import scenario_words
from ..report.tables import Table
from ..scenario_check import rounded
from .condition_map import Cell, ConditionMap
from .points import DEFAULT, Axis
from .tables import effect_text

MARKS = {"holds": "●", "fails": "✕", "open": "", "missing": ""}
"""Stand behind an effect."""

STATES = (
    "● holds: the interval of every comparison lies inside what the rule says. ✕ fails: one lies outside. Without a "
    "mark: neither. Of several comparisons the one that bears the claim least is shown."
)


def axis_table(found: ConditionMap, axis: Axis) -> Table:
    """The findings at the default and at the points of an axis, with intervals."""
    points = (DEFAULT, *axis.points)
    rows = tuple(
        (finding.claim, tuple(_cell_text(found.cells[finding.name, point.name]) for point in points))
        for finding in found.plan.findings
    )
    columns = tuple(point.label for point in points)
    return Table(f"axis-{axis.name}", axis.title, f"{axis.note} {STATES}".strip(), columns, rows, first="finding")


def count_table(found: ConditionMap) -> Table:
    """At how many points each finding holds, fails and is open."""
    rows = []
    for finding in found.plan.findings:
        states = [found.cells[finding.name, point.name].state for point, _ in found.plan.points]
        counts = tuple(str(states.count(state)) for state in ("holds", "open", "fails", "missing"))
        weakest = found.cells[finding.name, DEFAULT.name]
        rule = weakest.weakest.effect.rule.text(weakest.weakest.unit) if weakest.compared else "–"
        rows.append((finding.claim, (rule, *counts)))
    note = f"Of {len(found.plan.points)} points, the default among them."
    columns = ("rule", "holds", "open", "fails", "not looked at")
    return Table("counts", "How often each finding holds", note, columns, tuple(rows), first="finding")


def command_tables(found: ConditionMap) -> tuple[Table, ...]:
    """The commands that make the runs of each point, and those that tune for it."""
    rows, tuned = [], []
    for point, _ in found.plan.points:
        measured = found.measured[point.name]
        for part in measured.parts:
            command = measured.commands[part.name] or f"only as part of {found.command}"
            rows.append((f"{point.label}: {part.name}", (command,)))
        if measured.parts:
            scenario = measured.parts[0].scenario
            words = ["disaggroute", "tune", "marginal-cost", scenario.workload, *scenario_words(scenario)]
            if scenario.observability == "router":
                tuned.append((point.label, (shlex.join(words),)))
    note = "Each makes the runs of a condition at a point again."
    runs = Table("commands", "Commands", note, ("command",), tuple(rows), first="runs")
    note = (
        "Weights for each point, in its first condition. A point of a map of one's own takes the file that a command "
        "writes: policies: {marginal-cost: marginal-cost@FILE}."
    )
    return runs, Table("tuning", "Tuned weights", note, ("command",), tuple(tuned), first="point")


def map_rows(found: ConditionMap) -> list[dict[str, Any]]:
    """One row per finding, point and comparison; effects in the unit beside them."""
    axes = {point.name: axis.name for axis in found.plan.axes for point in axis.points}
    rows: list[dict[str, Any]] = []
    for finding in found.plan.findings:
        for point, _ in found.plan.points:
            cell = found.cells[finding.name, point.name]
            told: dict[str, Any] = {"finding": finding.name, "axis": axes.get(point.name, ""), "point": point.name}
            told |= {"state": cell.state}
            if not cell.compared:
                rows.append(told | {"missing": cell.missing})
            for each in cell.compared:
                estimate, rule = each.effect.estimate, each.effect.rule
                rows.append(
                    told
                    | {"missing": "", "comparison": each.text, "seeds": len(estimate.values), "unit": each.unit}
                    | {"effect": rounded(estimate.mean)}
                    | {"effect_low": rounded(estimate.low), "effect_high": rounded(estimate.high)}
                    | {"rule": rule.kind, "margin": rule.margin}
                )
    return rows


def _cell_text(cell: Cell) -> str:
    if not cell.compared:
        return "–"
    return f"{effect_text(cell.weakest)} {MARKS[cell.state]}".rstrip()
