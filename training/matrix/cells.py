"""The cells of a matrix: each policy in each condition, against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..comparison import compare, mean_over_runs
from ..evaluation import Evaluation
from ..statistics import Estimate
from ..summary import Share, Summary
from .plan import Part, Plan


class Worst(NamedTuple):
    """The SLO class or workload family that loses most.

    Attributes:
        group: its name.
        difference: of its goodput to the reference's, mean over the seeds.
    """

    group: str
    difference: float


@dataclass(frozen=True)
class Cell:
    """A policy in a condition.

    Attributes:
        text: the policy.
        hash: of the policy.
        goodput: with interval.
        difference: to the reference, paired by trace, with interval; None for the reference itself and for whatever
            is the same policy there.
        worst: the group that loses most against the reference; None where there is no difference.
        ttft_p999: s, mean over the seeds.
        slowdown_p999: E2E over E2E alone, mean over the seeds.
        ttft_ratio: ttft_p999 over the reference's.
        slowdown_ratio: slowdown_p999 over the reference's.
        beyond_3x: share of requests that missed three times their targets.
    """

    text: str
    hash: str
    goodput: Estimate
    difference: Estimate | None
    worst: Worst | None
    ttft_p999: float
    slowdown_p999: float
    ttft_ratio: float
    slowdown_ratio: float
    beyond_3x: float


@dataclass(frozen=True)
class Row:
    """A condition.

    Attributes:
        part: what was run.
        evaluation: its runs.
        ceiling: mean share of requests that meet their targets alone.
        requests: measured requests of each policy.
        interval: how its intervals were made, in words.
        cells: by the name of the policy.
    """

    part: Part
    evaluation: Evaluation
    ceiling: float
    requests: int
    interval: str
    cells: dict[str, Cell]

    @property
    def name(self) -> str:
        """Of the condition."""
        return self.part.name


@dataclass(frozen=True)
class Matrix:
    """A matrix that has run.

    Attributes:
        plan: what was run.
        rows: one per condition.
        command: the command line that makes it again.
    """

    plan: Plan
    rows: tuple[Row, ...]
    command: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the policies, the reference first."""
        return self.plan.labels

    @property
    def reference(self) -> str:
        """Name of the reference."""
        return self.plan.reference

    @property
    def title(self) -> str:
        """What was run, in one line."""
        count = len(self.rows)
        return f"{self.plan.config.name}: {count} condition{'s' if count > 1 else ''}, reference {self.reference}"


def row_of(part: Part, evaluation: Evaluation, reference: str) -> Row:
    """The cells of a condition.

    Args:
        part: the condition.
        evaluation: its runs.
        reference: name of the policy that the others are compared with.
    """
    base = part.policies[reference]
    comparison = compare(evaluation, base)
    lines = {line.label: line for line in comparison.lines}
    of_base = [run.summary for run in evaluation.runs[base]]
    cells = {}
    for name, text in part.policies.items():
        summaries, line = [run.summary for run in evaluation.runs[text]], lines[text]
        ttft, slowdown = _p999(summaries)
        base_ttft, base_slowdown = _p999(of_base)
        cells[name] = Cell(
            text=text,
            hash=str(evaluation.runs[text][0].policy["hash"]),
            goodput=line.goodput,
            difference=line.difference,
            worst=None if text == base else worst_group(summaries, of_base),
            ttft_p999=ttft,
            slowdown_p999=slowdown,
            ttft_ratio=_ratio(ttft, base_ttft),
            slowdown_ratio=_ratio(slowdown, base_slowdown),
            beyond_3x=mean_over_runs(summaries, lambda s: s.beyond_3x),
        )
    return Row(part, evaluation, comparison.ceiling, comparison.requests, comparison.interval, cells)


def worst_group(summaries: list[Summary], reference: list[Summary]) -> Worst | None:
    """The SLO class or family whose goodput lies lowest against the reference's, on the same traces."""
    found = group_differences(summaries, reference)
    means = {name: math.fsum(values) / len(values) for name, values in found.items()}
    if not means:
        return None
    name = min(means, key=lambda group: means[group])
    return Worst(name, means[name])


def group_differences(summaries: list[Summary], reference: list[Summary]) -> dict[str, list[float]]:
    """Goodput of each SLO class and family less the reference's, on each trace that has any of its requests."""
    found: dict[str, list[float]] = {}
    for mine, other in zip(summaries, reference, strict=True):
        others = dict(_groups(other))
        for name, share in _groups(mine):
            if share.requests:
                found.setdefault(name, []).append(share.goodput - others[name].goodput)
    return found


def _groups(summary: Summary) -> Iterator[tuple[str, Share]]:
    yield from summary.by_class.items()
    if len(summary.by_family) > 1:
        yield from summary.by_family.items()


def _p999(summaries: list[Summary]) -> tuple[float, float]:
    return mean_over_runs(summaries, lambda s: s.ttft.p999), mean_over_runs(summaries, lambda s: s.slowdown.p999)


def _ratio(value: float, reference: float) -> float:
    """NaN where both are infinite, or there is nothing to divide by."""
    if not reference > 0 or math.isinf(reference):
        return math.nan
    return value / reference
