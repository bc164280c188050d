"""Scores over many scenarios: interquartile mean, stratified bootstrap, performance profiles.

Source: Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep reinforcement learning at the edge of the statistical
precipice", NeurIPS 2021 (arXiv 2108.13264). A run is a seed of a scenario. Scenarios may have different numbers of
seeds, so runs are weighted: each scenario weighs the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statistics import BLOCK_S, FEWEST, Estimate, resampled_in_blocks
from ..summary import SEGMENT_S, Summary

Floats = npt.NDArray[np.float64]

RESAMPLES = 2_000
"""Bootstrap resamples of what is made of all runs: fewer than of one scenario, since each sorts them all."""


@dataclass(frozen=True, eq=False)
class Stratum:
    """The scores of a policy in one scenario.

    Attributes:
        values: (n,) one per seed; one value for a recorded trace.
        trace: of a recorded trace, its (R,) scores when blocks of it are drawn anew; None for seeds.
    """

    values: Floats
    trace: Floats | None = None

    def drawn(self, seed: int) -> Floats:
        """(RESAMPLES, n) scores of seeds drawn with replacement, or of one trace with its blocks drawn anew.

        Args:
            seed: of the drawing; the same draws the same seeds for every policy.
        """
        if self.trace is not None:
            return self.trace[:RESAMPLES, None]
        n = len(self.values)
        return self.values[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]


def stratum(mine: Sequence[Summary], zero: Sequence[Summary], gap: float, *, recorded: bool) -> Stratum:
    """Scores seed by seed: (goodput − that of score 0) / gap.

    Args:
        mine: summaries of a policy.
        zero: of the policy whose score is 0, on the same seeds.
        gap: goodput that is worth a score of 1.
        recorded: whether they are of one recorded trace.
    """
    values = np.array([(a.goodput - b.goodput) / gap for a, b in zip(mine, zero, strict=True)])
    if not recorded:
        return Stratum(values)
    requests = np.asarray(mine[0].segment_requests, np.float64)
    more = np.subtract(mine[0].segment_met, zero[0].segment_met).astype(np.float64)
    block = round(BLOCK_S / SEGMENT_S)
    if len(requests) // block < FEWEST:
        return Stratum(values, np.full(RESAMPLES, values[0]))
    return Stratum(values, resampled_in_blocks(more[None], requests, block=block)[0] / gap)


def interquartile_mean(values: Floats, weights: Floats) -> Floats:
    """Mean of the middle half of the weight, along the last axis.

    Values that lie across a quartile count with the part of their weight that lies inside.

    Args:
        values: (…, n).
        weights: (n,) positive.

    Returns:
        (…) means.
    """
    order = np.argsort(values, axis=-1, kind="stable")
    share = weights[order] / weights.sum()
    upper = np.cumsum(share, axis=-1)
    inside = np.minimum(upper, 0.75) - np.maximum(upper - share, 0.25)
    found: Floats = (np.maximum(inside, 0.0) * np.take_along_axis(values, order, -1)).sum(axis=-1) / 0.5
    return found


def profile(values: Floats, weights: Floats, at: Floats) -> Floats:
    """Performance profile: the weighted share of runs with a score above each threshold.

    Args:
        values: (…, n).
        weights: (n,) positive.
        at: (T,) thresholds.

    Returns:
        (…, T) shares.
    """
    share = weights / weights.sum()
    return np.stack([(values > tau) @ share for tau in at], axis=-1)


def pooled(strata: Sequence[Stratum]) -> tuple[Floats, Floats]:
    """All runs of a policy, and their weights: (N,) each."""
    values = np.concatenate([each.values for each in strata])
    return values, _weights(strata)


def resampled(strata: Sequence[Stratum]) -> Floats:
    """(RESAMPLES, N) runs drawn anew, scenario by scenario."""
    return np.concatenate([each.drawn(seed) for seed, each in enumerate(strata)], axis=1)


def overall(strata: Sequence[Stratum], confidence: float = 0.95) -> Estimate:
    """Interquartile mean over all runs, with its percentile interval by stratified bootstrap.

    Args:
        strata: one per scenario.
        confidence: of the interval.

    Returns:
        The estimate, whose values are the means of the scenarios; no interval where a scenario has fewer than four
        seeds.
    """
    values, weights = pooled(strata)
    mean = float(interquartile_mean(values, weights))
    means = tuple(float(each.values.mean()) for each in strata)
    if any(each.trace is None and len(each.values) < FEWEST for each in strata):
        return Estimate(mean, None, None, means)
    drawn = interquartile_mean(resampled(strata), weights)
    low, high = np.quantile(drawn, (0.5 - confidence / 2, 0.5 + confidence / 2))
    return Estimate(mean, float(low), float(high), means)


def _weights(strata: Sequence[Stratum]) -> Floats:
    return np.concatenate([np.full(len(each.values), 1.0 / len(each.values)) for each in strata])
