"""Whether policies rank alike, measured and simulated, and how much of a difference is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..statistics import BLOCK_S, FEWEST, RESAMPLES, resampled_in_blocks
from ..summary import SEGMENT_S
from .goodput import segments
from .replay import Replay

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Two policies, and which is better.

    Attributes:
        first: better or equal as measured.
        second: the other.
        measured: goodput of the first − of the second, as measured.
        low: lower end of the interval of `measured`, or None.
        high: upper end.
        simulated: the same difference in the simulator.
    """

    first: str
    second: str
    measured: float
    low: float | None
    high: float | None
    simulated: float

    @property
    def verdict(self) -> str:
        """Alike, swapped, or swapped where the measurement itself is or may be noise."""
        if self.measured * self.simulated > 0 or self.measured == self.simulated == 0:
            return "alike"
        if self.measured == 0 or (self.low is not None and self.high is not None and self.low <= 0 <= self.high):
            return "within the noise"
        order = "tied in the simulator" if self.simulated == 0 else "swapped"
        return order if self.low is not None else f"{order}, noise unknown"


@dataclass(frozen=True)
class Ranking:
    """The policies' goodput, measured and simulated.

    Attributes:
        measured: by policy, the mean over its requests, and the ends of its interval or None.
        simulated: by policy, with the overhead where it is known.
        tau: Kendall's tau-b of the two rankings; NaN with one policy, or where all are equal.
        low: lower end of the interval of tau, or None.
        high: upper end.
        pairs: every pair of policies.
        interval: how intervals were made, in words.
    """

    measured: dict[str, tuple[float, float | None, float | None]]
    simulated: dict[str, float]
    tau: float
    low: float | None
    high: float | None
    pairs: tuple[Pair, ...]
    interval: str


def rank(
    by_policy: Mapping[str, Sequence[Replay]],
    overhead: int,
    *,
    noise: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Ranks the policies by goodput over their compared requests.

    The interval says how the measured ranking may change by chance. With a repeat it is drawn from the noise that
    repeats were seen to have (normal, one deviation for all policies); without one from a block bootstrap over the
    time of the traces, the same blocks for all policies. The simulated goodputs, which have no noise of that kind,
    are those of the same blocks.

    Args:
        by_policy: replays of each policy, on the same seeds in the same order.
        overhead: ps on every simulated TTFT.
        noise: standard deviation of one run's goodput between repeats, or None.
        confidence: of the intervals.
        seed: of the resampling.
    """
    labels = list(by_policy)
    parts = [segments(runs, overhead) for runs in by_policy.values()]
    shares = np.array([[part[k].sum() / part[0].sum() for part in parts] for k in (1, 2)])
    measured, simulated = shares
    drawn, words = _drawn(parts, shares, noise, len(next(iter(by_policy.values()))), confidence, seed)
    tail = (1 - confidence) / 2

    def ends(values: Floats | None) -> tuple[float | None, float | None]:
        if values is None or not np.isfinite(values).any():
            return None, None
        low, high = np.nanquantile(values, (tail, 1 - tail))
        return float(low), float(high)

    pairs = []
    for i, j in combinations(range(len(labels)), 2):
        a, b = (i, j) if measured[i] >= measured[j] else (j, i)
        low, high = ends(None if drawn is None else drawn[0, a] - drawn[0, b])
        difference = float(simulated[a] - simulated[b])
        pairs.append(Pair(labels[a], labels[b], float(measured[a] - measured[b]), low, high, difference))
    taus = None if drawn is None else kendall_tau(drawn[0].T, drawn[1].T)
    return Ranking(
        measured={
            label: (float(measured[k]), *ends(None if drawn is None else drawn[0, k])) for k, label in enumerate(labels)
        },
        simulated={label: float(simulated[k]) for k, label in enumerate(labels)},
        tau=float(kendall_tau(measured[None], simulated[None])[0]),
        low=ends(taus)[0],
        high=ends(taus)[1],
        pairs=tuple(pairs),
        interval=words,
    )


def kendall_tau(a: Floats, b: Floats) -> Floats:
    """Kendall's tau-b of the rows of two arrays: pairs in the same order less pairs in the other, ties accounted for.

    Args:
        a: (R, K).
        b: (R, K).

    Returns:
        (R,); NaN where all values of a row are equal.
    """
    i, j = np.triu_indices(a.shape[1], 1)
    x, y = np.sign(a[:, i] - a[:, j]), np.sign(b[:, i] - b[:, j])
    untied = np.sqrt((x != 0).sum(axis=1) * (y != 0).sum(axis=1))
    tau: Floats = np.divide((x * y).sum(axis=1), untied, out=np.full(len(a), np.nan), where=untied > 0)
    return tau


def _drawn(
    parts: list[tuple[Floats, Floats, Floats]],
    shares: Floats,
    noise: float | None,
    seeds: int,
    confidence: float,
    seed: int,
) -> tuple[Floats | None, str]:
    """(2, K, R) goodputs, measured and simulated, as chance may have them; and how they were drawn."""
    level = f"{100 * confidence:g} %"
    if noise is not None:
        rng = np.random.default_rng(seed)
        moved = shares[0][:, None] + rng.normal(0.0, noise / np.sqrt(seeds), (shares.shape[1], RESAMPLES))
        still = np.repeat(shares[1][:, None], RESAMPLES, axis=1)
        return np.stack([moved, still]), f"{level}, by the noise between repeats ({100 * noise:.2f} points a run)"
    block = round(BLOCK_S / SEGMENT_S)
    lengths = {len(part[0]) for part in parts}
    if len(lengths) > 1:
        return None, "none: the policies' records are not of the same seeds"
    if min(lengths) // block < FEWEST:
        return None, f"none: all traces together have fewer than four blocks of {BLOCK_S:g} s"
    drawn = []
    with np.errstate(invalid="ignore"):
        for k in (1, 2):
            rows = [resampled_in_blocks(part[k][None], part[0], block=block, seed=seed)[0] for part in parts]
            drawn.append(np.stack(rows))
    return np.stack(drawn), f"{level}, by bootstrap over blocks of {BLOCK_S:g} s of the traces"
