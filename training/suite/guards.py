"""Guards: what a high score may not be bought with.

A limit is passed where the mean over the seeds lies beyond it with its whole 95 % interval. A P99.9 is made of some
twenty requests of each trace: from one set of seeds to the next, its mean moves by a third. Where there is no interval
(fewer than four seeds, a recorded trace) the mean decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..matrix.cells import Worst, group_differences, worst_group
from ..statistics import mean_over_seeds
from ..summary import Quantiles, Summary

MOST_LOSS = 0.05
"""Goodput that an SLO class or a family may lose against the reference."""

MOST_TAIL = 1.5
"""P99.9 of TTFT and of slowdown that are allowed, over those of the best tuned heuristic."""

TAILS = {"ttft": "TTFT", "slowdown": "slowdown"}
"""Fields of a summary whose P99.9 is held to a limit, and their names in tables."""


@dataclass(frozen=True)
class Guards:
    """What the guards found about a policy in a scenario.

    Attributes:
        worst: the class or family that loses most against the reference; None for the reference itself.
        ttft_p999: s, mean over the seeds.
        slowdown_p999: E2E over E2E alone, mean over the seeds.
        ttft_ratio: ttft_p999 over that of the best tuned heuristic; NaN where that is infinite.
        slowdown_ratio: likewise.
        rejected: requests that were rejected, of all seeds.
        failed: requests that failed, of all seeds; they count as missed.
        breaches: what disqualifies, each in a few words.
    """

    worst: Worst | None
    ttft_p999: float
    slowdown_p999: float
    ttft_ratio: float
    slowdown_ratio: float
    rejected: int
    failed: int
    breaches: tuple[str, ...]


def guard(
    mine: Sequence[Summary],
    *,
    reference: Sequence[Summary] | None,
    heuristic: Sequence[Summary],
    zero: Sequence[Summary],
) -> Guards:
    """Holds a policy to its guards, on the same seeds.

    Args:
        mine: its summaries.
        reference: of the policy against which no group may lose much; None: it is this one.
        heuristic: of the best tuned heuristic.
        zero: of round robin, which rejects what arrives while a pool has no instance, and no more.
    """
    worst = None if reference is None else worst_group(list(mine), list(reference))
    tails = {name: _p999(mine, name) for name in TAILS}
    limits = {name: _p999(heuristic, name) for name in TAILS}
    rejected = sum(s.rejected for s in mine)
    breaches = [] if reference is None else _losses(mine, reference)
    for name, words in TAILS.items():
        if 0 < _mean(limits[name]) < math.inf and _beyond(
            [value - MOST_TAIL * limit for value, limit in zip(tails[name], limits[name], strict=True)]
        ):
            ratio = _ratio(tails[name], limits[name])
            breaches.append(f"{words} × {ratio:.1f}" if math.isfinite(ratio) else f"{words} × ∞")
    if rejected > sum(s.rejected for s in zero):
        breaches.append(f"rejected {rejected:,}")
    return Guards(
        worst=worst,
        ttft_p999=_mean(tails["ttft"]),
        slowdown_p999=_mean(tails["slowdown"]),
        ttft_ratio=_ratio(tails["ttft"], limits["ttft"]),
        slowdown_ratio=_ratio(tails["slowdown"], limits["slowdown"]),
        rejected=rejected,
        failed=sum(s.failed for s in mine),
        breaches=tuple(breaches),
    )


def _losses(mine: Sequence[Summary], reference: Sequence[Summary]) -> list[str]:
    """The group that loses most of those that lose too much, in words."""
    differences = group_differences(list(mine), list(reference))
    lost = {
        group: _mean(values)
        for group, values in differences.items()
        if _beyond([-MOST_LOSS - value for value in values])
    }
    group = min(lost, key=lambda name: lost[name], default=None)
    return [] if group is None else [f"{group} {100 * lost[group]:+.1f}"]


def _beyond(excesses: Sequence[float]) -> bool:
    """Whether what lies beyond a limit, seed by seed, is more than nothing, with its interval where there is one."""
    values = [value for value in excesses if not math.isnan(value)]
    if not round(_mean(values), 9) > 0:
        return False
    low = mean_over_seeds(values).low
    return low is None or low > 0


def _p999(summaries: Sequence[Summary], name: str) -> list[float]:
    """Of each run."""
    quantiles: list[Quantiles] = [getattr(summary, name) for summary in summaries]
    return [each.p999 for each in quantiles]


def _mean(values: Sequence[float]) -> float:
    """Of the runs that have a number; NaN when none has."""
    there = [value for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else math.nan


def _ratio(values: Sequence[float], limits: Sequence[float]) -> float:
    """Of the means; NaN where there is nothing to hold it to."""
    value, limit = _mean(values), _mean(limits)
    return value / limit if limit > 0 and math.isfinite(limit) else math.nan
