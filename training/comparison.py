"""Policies compared on the same traces: goodput, its difference to a baseline, and the other numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .runs import Run
from .statistics import BLOCK_S, Estimate, mean_over_seeds, paired_difference, share_in_blocks
from .summary import SEGMENT_S, Summary

BASELINE = "round-robin"
"""Policy that the others are compared with, where it took part."""


class Compared(Protocol):
    """Finished runs that can be compared: an evaluation, or the results read back from its folder."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Policies, in the order asked for."""

    @property
    def runs(self) -> dict[str, tuple[Run, ...]]:
        """Runs by policy, in the order of the seeds."""

    @property
    def single(self) -> bool:
        """Whether there is one recorded trace, whose interval comes from its own segments."""


@dataclass(frozen=True)
class Line:
    """One policy's numbers; means over the seeds unless said otherwise.

    Attributes:
        label: the policy.
        goodput: with interval.
        difference: to the baseline, paired by trace, with interval; None for the baseline itself.
        tight: goodput of the tight class.
        loose: goodput of the loose class.
        ttft_p50: s.
        ttft_p99: s.
        tpot_p99: s.
        stall: longest stall of all runs, s.
        count_cv: coefficient of variation of the requests per decode (or mixed) instance.
        token_cv: the same, of output tokens.
        failed: failed and rejected requests of all runs.
    """

    label: str
    goodput: Estimate
    difference: Estimate | None
    tight: float
    loose: float
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    stall: float
    count_cv: float
    token_cv: float
    failed: int


@dataclass(frozen=True)
class Comparison:
    """The policies of an evaluation, side by side.

    Attributes:
        lines: one per policy, in the order asked for.
        baseline: label of the baseline.
        ceiling: mean share of requests that meet their targets alone on the empty cluster.
        requests: measured requests of each policy, all runs together.
        interval: how intervals were made, in words.
    """

    lines: tuple[Line, ...]
    baseline: str
    ceiling: float
    requests: int
    interval: str


def compare(evaluation: Compared, baseline: str | None = None) -> Comparison:
    """Compares the policies of an evaluation.

    Args:
        evaluation: finished runs, or results read back.
        baseline: label to compare with; by default round robin, else the first policy.

    Raises:
        ValueError: the baseline did not take part.
    """
    labels = evaluation.labels
    if baseline is None:
        baseline = BASELINE if BASELINE in labels else labels[0]
    if baseline not in labels:
        raise ValueError(f"baseline is {baseline!r}; it must be one of {', '.join(labels)}")
    reference = evaluation.runs[baseline]
    single = evaluation.single
    lines = tuple(
        _line(label, evaluation.runs[label], None if label == baseline else reference, single)
        for label in labels
    )
    summaries = [run.summary for run in reference]
    return Comparison(
        lines=lines,
        baseline=baseline,
        ceiling=mean_over_runs(summaries, lambda s: s.ceiling),
        requests=sum(s.requests for s in summaries),
        interval=interval_in_words(lines[0].goodput, len(summaries), single),
    )


def _line(label: str, runs: tuple[Run, ...], reference: tuple[Run, ...] | None, single: bool) -> Line:
    summaries = [run.summary for run in runs]
    others = [run.summary for run in reference] if reference else None
    if single:
        goodput = _in_blocks(summaries[0], None)
        difference = _in_blocks(summaries[0], others[0]) if others else None
    else:
        values = [s.goodput for s in summaries]
        goodput = mean_over_seeds(values)
        difference = paired_difference(values, [s.goodput for s in others]) if others else None
    role = "decode" if "decode" in summaries[0].balance else "mixed"
    return Line(
        label=label,
        goodput=goodput,
        difference=difference,
        tight=mean_over_runs(summaries, lambda s: s.by_class["tight"].goodput),
        loose=mean_over_runs(summaries, lambda s: s.by_class["loose"].goodput),
        ttft_p50=mean_over_runs(summaries, lambda s: s.ttft.p50),
        ttft_p99=mean_over_runs(summaries, lambda s: s.ttft.p99),
        tpot_p99=mean_over_runs(summaries, lambda s: s.tpot.p99),
        stall=max(s.max_stall for s in summaries),
        count_cv=mean_over_runs(summaries, lambda s: s.balance[role].count_cv),
        token_cv=mean_over_runs(summaries, lambda s: s.balance[role].token_cv),
        failed=sum(s.failed + s.rejected for s in summaries),
    )


def _in_blocks(summary: Summary, other: Summary | None) -> Estimate:
    return share_in_blocks(
        summary.segment_met,
        summary.segment_requests,
        baseline=other.segment_met if other else None,
        block=round(BLOCK_S / SEGMENT_S),
    )


def interval_in_words(goodput: Estimate, seeds: int, single: bool) -> str:
    """How the intervals of an evaluation were made, such as that of a policy's goodput."""
    if single:
        if goodput.has_interval:
            return f"95 % by bootstrap over blocks of {BLOCK_S:g} s of one trace"
        return f"none: one trace of fewer than four blocks of {BLOCK_S:g} s"
    if goodput.has_interval:
        return f"95 % by bootstrap over {seeds} seeds, differences paired by seed"
    return f"none: {seeds} seed{'s' if seeds > 1 else ''}, an interval needs at least 4"


def mean_over_runs(summaries: list[Summary], number: Callable[[Summary], float]) -> float:
    """Mean over the runs that have a number (a class may be missing from a short trace); NaN when none has."""
    values = [value for value in map(number, summaries) if not math.isnan(value)]
    return math.fsum(values) / len(values) if values else math.nan
