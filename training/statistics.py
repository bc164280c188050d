"""Means, paired differences and their bootstrap intervals.

Policies are compared on the same traces (common random numbers), so the difference between two policies is
taken trace by trace and its interval is far narrower than that of either mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 10_000
"""Bootstrap resamples of an interval."""

MOST_DRAWN = 1_000_000
"""Blocks that are drawn at a time."""

MOST_EXACT = 13
"""Traces up to which a sign-flip test looks at all sign patterns; 2^13 are about as many as are drawn otherwise."""

FEWEST = 4
"""Traces below which values are shown without an interval."""

BLOCK_S = 60.0
"""Length of a block of the block bootstrap, seconds: several bursts of the bursty families."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and its interval where there are traces enough for one.

    Attributes:
        mean: mean over the traces.
        low: lower end of the interval, or None.
        high: upper end of the interval, or None.
        values: one value per trace (or the one value of a real trace).
    """

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval exists and lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_over_seeds(values: npt.ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Estimate:
    """Mean of one value per seed, with a bootstrap interval over the seeds.

    The percentile interval of few values is too narrow; its levels are widened so that for normal values it
    agrees with Student's (Hesterberg 2015, "What teachers should know about the bootstrap", the expanded
    percentile interval).

    Args:
        values: (S,) one per seed.
        confidence: of the interval, between 0 and 1.
        seed: of the resampling.

    Raises:
        ValueError: no value, or a confidence outside (0, 1).
    """
    sample = np.asarray(values, np.float64)
    _check(sample, confidence)
    n = len(sample)
    mean = float(sample.mean())
    if n < FEWEST or not np.isfinite(sample).all():
        return Estimate(mean, None, None, tuple(sample.tolist()))
    rng = np.random.default_rng(seed)
    means = sample[rng.integers(0, n, (RESAMPLES, n))].mean(axis=1)
    reach = np.sqrt(n / (n - 1)) * student_quantile(0.5 + confidence / 2, n - 1)
    tail = NormalDist().cdf(-float(reach))
    low, high = np.quantile(means, (tail, 1 - tail))
    return Estimate(mean, float(low), float(high), tuple(sample.tolist()))


def paired_difference(
    values: npt.ArrayLike, baseline: npt.ArrayLike, *, confidence: float = 0.95, seed: int = 0
) -> Estimate:
    """Mean of value − baseline, seed by seed, with its bootstrap interval.

    Args:
        values: (S,) one per seed.
        baseline: (S,) the baseline's, on the same seeds in the same order.
        confidence: of the interval.
        seed: of the resampling.

    Raises:
        ValueError: the two differ in length.
    """
    a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"baseline has {len(b)} values for {len(a)}; a paired difference needs the same seeds"
        )
    return mean_over_seeds(a - b, confidence=confidence, seed=seed)


def sign_flip_p(values: npt.ArrayLike, *, greater: bool = False, seed: int = 0) -> float:
    """P-value of the sign-flip test that the mean of paired differences is zero (Fisher's randomisation test).

    Under the hypothesis each difference is as likely as its negative. All sign patterns are looked at for up to
    `MOST_EXACT` values; for more, `RESAMPLES` are drawn and the observed one is counted among them.

    Args:
        values: (S,) one difference per seed.
        greater: whether only means above zero speak against it; else it is two-sided.
        seed: of the drawing.

    Returns:
        The p-value; 1 where a value is not finite.

    Raises:
        ValueError: no value.
    """
    sample = np.asarray(values, np.float64)
    _check(sample, 0.5)
    if not np.isfinite(sample).all():
        return 1.0
    n = len(sample)
    if n <= MOST_EXACT:
        signs = 1.0 - 2.0 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
        sums = signs @ sample  # The first pattern is the observed one.
    else:
        drawn = 1.0 - 2.0 * np.random.default_rng(seed).integers(0, 2, (RESAMPLES, n))
        sums = np.concatenate([[sample.sum()], drawn @ sample])
    observed, slack = float(sample.sum()), 1e-12 * float(np.abs(sample).sum())
    extreme = sums >= observed - slack if greater else np.abs(sums) >= abs(observed) - slack
    return float(extreme.mean())


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """P-values adjusted for their number (Holm 1979): those below α are wrong together with probability α at most.

    Args:
        p_values: of the hypotheses, in any order.

    Returns:
        The adjusted ones in the same order, each at most 1.
    """
    adjusted, floor = [1.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = floor
    return tuple(adjusted)


def share_in_blocks(
    met: npt.ArrayLike,
    requests: npt.ArrayLike,
    *,
    baseline: npt.ArrayLike | None = None,
    block: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Goodput of one real trace, with an interval by block bootstrap over contiguous segments.

    Circular blocks (Politis and Romano 1992): blocks of `block` consecutive segments are drawn with
    replacement, from any start and around the end, so that dependence inside a block survives. With a
    baseline the same blocks are drawn for both and the difference of the two goodputs is estimated.

    Args:
        met: (M,) requests of each segment that met their targets.
        requests: (M,) arrivals of each segment, the same for every policy.
        baseline: (M,) the baseline's `met`.
        block: segments in a block, ≥ 1.
        confidence: of the interval.
        seed: of the resampling.

    Returns:
        The estimate; without interval when the trace holds fewer than four blocks.

    Raises:
        ValueError: lengths differ, no request, or a block below 1.
    """
    hits, total = np.asarray(met, np.float64), np.asarray(requests, np.float64)
    if baseline is not None:
        base = np.asarray(baseline, np.float64)
        if base.shape != hits.shape:
            raise ValueError(f"baseline has {len(base)} segments for {len(hits)}; both need the same trace")
        hits = hits - base
    if hits.shape != total.shape or total.sum() <= 0:
        raise ValueError(f"segments have {total.sum():g} requests in {len(total)}; at least one is needed")
    if block < 1:
        raise ValueError(f"block is {block} segments; it must be at least 1")
    _check(total, confidence)
    m = len(total)
    mean = float(hits.sum() / total.sum())
    if m // block < FEWEST:
        return Estimate(mean, None, None, (mean,))
    shares = resampled_in_blocks(hits[None], total, block=block, seed=seed)[0]
    low, high = np.quantile(shares, (0.5 - confidence / 2, 0.5 + confidence / 2))
    return Estimate(mean, float(low), float(high), (mean,))


def resampled_in_blocks(met: Floats, requests: Floats, *, block: int, seed: int = 0) -> Floats:
    """Goodputs of circular block resamples of contiguous segments, the same blocks for all.

    Args:
        met: (K, M) requests of each segment that met their targets, of K policies.
        requests: (M,) arrivals of each segment.
        block: segments in a block, ≥ 1.
        seed: of the resampling.

    Returns:
        (K, RESAMPLES) goodputs.
    """
    count, m = met.shape
    blocks = -(-m // block)
    rng = np.random.default_rng(seed)
    met_in, all_in = [_block_sums(row, block) for row in met], _block_sums(requests, block)
    shares = np.empty((count, RESAMPLES))
    rows = max(1, MOST_DRAWN // blocks)  # Together they would not fit into memory where a trace is long.
    for first in range(0, RESAMPLES, rows):
        starts = rng.integers(0, m, (min(rows, RESAMPLES - first), blocks))
        drawn = all_in[starts].sum(axis=1)
        for k, each in enumerate(met_in):
            shares[k, first : first + rows] = each[starts].sum(axis=1) / drawn
    return shares


@lru_cache(maxsize=256)
def student_quantile(level: float, freedom: int) -> float:
    """Quantile of Student's t.

    With t = √ν·tan(u) the density becomes cos(u)^(ν−1) on (−π/2, π/2), which is summed on a grid.

    Args:
        level: between 0 and 1.
        freedom: degrees of freedom ν, ≥ 1.
    """
    edge = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    middle = (edge[1:] + edge[:-1]) / 2
    reached = np.concatenate([[0.0], np.cumsum(np.cos(middle) ** (freedom - 1))])
    angle = np.interp(level, reached / reached[-1], edge)
    return float(np.sqrt(freedom) * np.tan(angle))


def _block_sums(values: Floats, block: int) -> Floats:
    around = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block - 1]]))])
    sums: Floats = around[block:] - around[:-block]
    return sums


def _check(values: Floats, confidence: float) -> None:
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values have shape {values.shape}; at least one value in a row is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")
