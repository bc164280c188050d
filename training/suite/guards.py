"""Guards: what a high score may not be bought with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..comparison import mean_over_runs
from ..matrix.cells import Worst, worst_group
from ..summary import Quantiles, Summary

MOST_LOSS = 0.05
"""Goodput that an SLO class or a family may lose against the reference."""

MOST_TAIL = 1.5
"""P99.9 of TTFT and of slowdown that are allowed, over those of the best tuned heuristic."""


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
    tails = [_p999(mine, name) for name in ("ttft", "slowdown")]
    ratios = [_ratio(tail, _p999(heuristic, name)) for tail, name in zip(tails, ("ttft", "slowdown"), strict=True)]
    rejected = sum(s.rejected for s in mine)
    breaches = []
    if worst is not None and round(worst.difference, 9) < -MOST_LOSS:
        breaches.append(f"{worst.group} {100 * worst.difference:+.1f}")
    for words, ratio in zip(("TTFT", "slowdown"), ratios, strict=True):
        if round(ratio, 9) > MOST_TAIL:
            breaches.append(f"{words} × {ratio:.1f}" if math.isfinite(ratio) else f"{words} × ∞")
    if rejected > sum(s.rejected for s in zero):
        breaches.append(f"rejected {rejected:,}")
    return Guards(
        worst=worst,
        ttft_p999=tails[0],
        slowdown_p999=tails[1],
        ttft_ratio=ratios[0],
        slowdown_ratio=ratios[1],
        rejected=rejected,
        failed=sum(s.failed for s in mine),
        breaches=tuple(breaches),
    )


def _p999(summaries: Sequence[Summary], name: str) -> float:
    """Mean over the seeds of a quantile of a run."""

    def read(summary: Summary) -> float:
        quantiles: Quantiles = getattr(summary, name)
        return quantiles.p999

    return mean_over_runs(list(summaries), read)


def _ratio(value: float, limit: float) -> float:
    """NaN where there is nothing to hold it to."""
    return value / limit if limit > 0 and math.isfinite(limit) else math.nan
