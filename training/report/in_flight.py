"""How many requests each instance holds over time, from the times in the records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ...envs.phases import PHASES, Leg, legs
from ..stored_records import StoredRecords

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stay:
    """Part of the life of each request, spent on an instance of one pool.

    Attributes:
        start: (N,) ps.
        end: (N,) ps, ≥ start; equal where the request was never there.
        instance: (N,) index within the pool; −1: on none.
    """

    start: Ints
    end: Ints
    instance: Ints


def stay(leg: Leg, first: str, last: str) -> Stay:
    """What lies between the start of one phase of a leg and the end of another (`PHASES`)."""
    names = PHASES[leg.role]
    return Stay(leg.edges[names.index(first)], leg.edges[names.index(last) + 1], leg.instance)


def legs_of(run: StoredRecords, aggregated: bool) -> tuple[Leg, ...]:
    """The legs of a run's requests; those that were routed again count from their last decision."""
    return legs(run.records, run.trace, aggregated=aggregated, routed=run.decided)


def mean_in_flight(stay: Stay, edges: Ints, size: int, weights: npt.ArrayLike | None = None) -> Floats:
    """Mean number of requests on each instance in each interval of time, exactly (not sampled).

    With F(t) = Σ w·(min(t, end) − min(t, start)), the mean between two edges is ΔF / Δt.

    Args:
        stay: when each request is where.
        edges: (B + 1,) ps, increasing.
        size: instances of the pool.
        weights: (N,) what each request counts, such as its tokens; 1 unless given.

    Returns:
        (size, B).
    """
    weight = np.ones(len(stay.start)) if weights is None else np.asarray(weights, np.float64)
    widths = np.diff(edges) / PS_PER_S
    means = np.zeros((size, len(widths)))
    for i in range(size):
        here = (stay.instance == i) & (stay.end > edges[0]) & (stay.start < edges[-1])
        held = _reached(stay.start[here], weight[here], edges) - _reached(stay.end[here], weight[here], edges)
        means[i] = np.diff(held) / widths
    return np.maximum(means, 0.0)  # Rounding may leave a hair below nothing.


def unevenness(load: Floats) -> float:
    """Coefficient of variation over the instances of a pool, the intervals weighted by their load.

    Standard deviation over the instances, averaged over time, ÷ mean load; 0 when all carry the same at any
    time, √(n − 1) when one of n carries everything; NaN without load.

    Args:
        load: (n, B) of each instance in each interval.
    """
    mean = float(load.mean()) if load.size else 0.0
    return float(load.std(axis=0).mean()) / mean if mean > 0 else float("nan")


def _reached(times: Ints, weights: Floats, edges: Ints) -> Floats:
    """Σ w·max(0, t − time) at each edge t, in seconds."""
    order = np.argsort(times, kind="stable")
    since = (times[order] - edges[0]) / PS_PER_S
    count = np.concatenate([[0.0], np.cumsum(weights[order])])
    moment = np.concatenate([[0.0], np.cumsum(weights[order] * since)])
    place = np.searchsorted(times[order], edges)
    reached: Floats = count[place] * ((edges - edges[0]) / PS_PER_S) - moment[place]
    return reached
