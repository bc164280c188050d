"""How many requests each instance holds over time, from the times in the records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
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

    def joined(self, later: Stay) -> Stay:
        """This part and the one that follows it on the same instances."""
        return Stay(self.start, later.end, self.instance)


@dataclass(frozen=True, eq=False)
class Stays:
    """The life of each request in four parts that follow one another without a gap.

    Of a request that was routed again only what followed its last decision is known.

    Attributes:
        queued: from the decision to its first prefill step, on the prefill (or mixed) instance.
        prefill: from there to the end of its prefill, on the same.
        transit: from there to the end of the transfer, which it spends waiting for memory and being pulled; on the
            decode instance; of no length in an aggregated cluster.
        decode: from there to its end, on the decode (or mixed) instance, the wait to join the batch included.
    """

    queued: Stay
    prefill: Stay
    transit: Stay
    decode: Stay


def stays(run: StoredRecords, aggregated: bool) -> Stays:
    """Parts of the life of each request of a run; a failure ends the part that it meets.

    Args:
        run: the records.
        aggregated: whether the cluster has mixed instances only.
    """
    records = run.records
    end = records["end"]
    begin = np.where(run.decided < 0, end, run.decided)
    first, second = records["prefill"].astype(np.int64), records["decode"].astype(np.int64)
    marks = [begin]
    for name in ("prefill_start", "prefill_end", "prefill_end" if aggregated else "transfer_end"):
        time = records[name]
        marks.append(np.maximum(np.where(time < 0, end, np.minimum(time, end)), marks[-1]))
    marks.append(np.maximum(end, marks[-1]))
    return Stays(*(Stay(marks[k], marks[k + 1], first if k < 2 else second) for k in range(4)))


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
