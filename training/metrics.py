"""The numbers of one run, from its records and its trace (integer comparisons, seconds out).

Every request that arrives in the measurement window counts, whatever became of it: one that failed or was
rejected has missed its targets and has an infinite delay. So no denominator depends on the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..envs.cluster import PS_PER_S
from ..envs.records import FAILED, FINISHED, REJECTED
from ..envs.trace import SLO_CLASSES, Trace
from ..envs.window import Window
from .summary import SEGMENT_S, Balance, Misses, Quantiles, Share, Summary

if TYPE_CHECKING:
    from ..envs.setting import Prepared

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCALE_QUARTERS = (2, 3, 4, 5, 6, 8, 10, 12)
"""Scales of the targets at which goodput is reported, in quarters (0.5 to 3)."""


def met_targets(records: npt.NDArray[Any], trace: Trace, quarters: int = 4) -> Bools:
    """Which requests met both targets, each multiplied by `quarters`/4.

    Args:
        records: (N,) of dtype RECORD, row i is request i of the trace.
        trace: the trace.
        quarters: scale of the targets in quarters.

    Returns:
        (N,) bool; failed and rejected requests are False.
    """
    in_time, smooth = met_each(records, trace, quarters)
    return in_time & smooth


def met_each(records: npt.NDArray[Any], trace: Trace, quarters: int = 4) -> tuple[Bools, Bools]:
    """Which requests met their TTFT target, and which their TPOT target, each multiplied by `quarters`/4.

    TTFT = first token − arrival; TPOT = (last − first)/(o − 1), and a one-token output meets any TPOT. Both
    are compared as integers: span ≤ (o − 1) · target.

    Args:
        records: (N,) of dtype RECORD, row i is request i of the trace.
        trace: the trace.
        quarters: scale of the targets in quarters.

    Returns:
        (N,) bool each; failed and rejected requests are False in both.
    """
    finished = records["status"] == FINISHED
    ttft = records["first_token"] - records["arrival"]
    span = records["last_token"] - records["first_token"]
    gaps = trace.output.astype(np.int64) - 1
    in_time: Bools = finished & (ttft <= trace.ttft_target * quarters // 4)
    smooth: Bools = finished & ((gaps == 0) | (span <= gaps * trace.tpot_target * quarters // 4))
    return in_time, smooth


def goodput(records: npt.NDArray[Any], prepared: Prepared) -> float:
    """Share of the requests in the measurement window that met both targets; the summary's, and nothing else.

    Args:
        records: (N,) of dtype RECORD, row i is request i of the trace.
        prepared: the trace and its window.
    """
    return float(met_targets(records, prepared.trace)[prepared.window.holds(prepared.trace)].mean())


def inter_token_p99(records: npt.NDArray[Any], trace: Trace) -> float:
    """P99 of the time between consecutive tokens, s, over all tokens of finished requests.

    An approximation: a record keeps the longest gap of a request and the sum of all, not each. The others are
    taken as equal, so the estimate is exact when a request has at most two gaps, or one stall and else an
    even pace, and too low when many of its gaps are long.
    """
    gaps = trace.output.astype(np.int64) - 1
    some = (records["status"] == FINISHED) & (gaps >= 1)
    if not some.any():
        return float("nan")
    gaps, stall = gaps[some], records["max_stall"][some].astype(np.float64)
    rest = (records["last_token"] - records["first_token"])[some] - stall
    even = rest / np.maximum(gaps - 1, 1)
    values = np.concatenate([stall, even])
    weights = np.concatenate([np.ones(len(gaps), np.int64), gaps - 1])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    rank = np.searchsorted(reached, 0.99 * reached[-1])
    return float(values[order][rank]) / PS_PER_S


def pool_balance(chosen: npt.NDArray[np.integer[Any]], tokens: Ints, size: int) -> Balance:
    """Use of the `size` instances of a pool.

    Args:
        chosen: (N,) index of each request's instance within the pool; −1 (rejected) is left out.
        tokens: (N,) tokens each request brings.
        size: number of instances.
    """
    assigned = chosen >= 0
    counts = np.bincount(chosen[assigned], minlength=size).astype(np.float64)
    load = np.bincount(chosen[assigned], weights=tokens[assigned], minlength=size).astype(np.float64)
    return Balance(
        count_cv=_over_mean(counts, float(np.std(counts))),
        count_max=_over_mean(counts, float(np.max(counts))),
        token_cv=_over_mean(load, float(np.std(load))),
        token_max=_over_mean(load, float(np.max(load))),
    )


def summarise(
    records: npt.NDArray[Any],
    trace: Trace,
    window: Window,
    *,
    pools: dict[str, int],
    gpus: int,
    alone: Ints | None = None,
    feasible: Bools | None = None,
) -> Summary:
    """Summary of one run.

    Args:
        records: (N,) of dtype RECORD, row i is request i of the trace; drained, so each has ended.
        trace: the trace that drove the run.
        window: which arrivals count.
        pools: instances per role: prefill and decode, or mixed.
        gpus: GPUs of the cluster.
        alone: (N,) E2E of each request alone on the empty cluster, ps.
        feasible: (N,) whether each request meets its targets alone.

    Raises:
        ValueError: records and trace differ in length, or no request arrives in the window.
    """
    if len(records) != len(trace):
        raise ValueError(f"{trace.name}: {len(records)} records for {len(trace)} requests; they must match")
    inside = window.holds(trace)
    if not inside.any():
        raise ValueError(
            f"{trace.name}: no request arrives between {window.start / PS_PER_S:g} s and "
            f"{window.end / PS_PER_S:g} s; the measurement window needs at least one"
        )
    rows, part = records[inside], trace.select(inside)
    in_time, smooth = met_each(rows, part)
    met = in_time & smooth
    finished = rows["status"] == FINISHED
    ttft = _seconds(rows["first_token"] - rows["arrival"], rows["first_token"] >= 0)
    e2e = _seconds(rows["last_token"] - rows["arrival"], finished)
    gaps = part.output.astype(np.int64) - 1
    tpot = _seconds(rows["last_token"] - rows["first_token"], finished)[gaps > 0] / gaps[gaps > 0]
    slowdown = e2e / (alone[inside] / PS_PER_S) if alone is not None else np.empty(0)
    tokens = {"prefill": part.prompt, "decode": part.output, "mixed": part.output}
    segment = ((part.arrival - window.start) // round(SEGMENT_S * PS_PER_S)).astype(np.int64)
    groups = {name: part.slo == k for k, name in enumerate(SLO_CLASSES)}
    groups |= {name: part.family == k for k, name in enumerate(part.families)}
    segments = -(-(window.end - window.start) // round(SEGMENT_S * PS_PER_S))
    return Summary(
        requests=len(part),
        met=int(met.sum()),
        failed=int((rows["status"] == FAILED).sum()),
        rejected=int((rows["status"] == REJECTED).sum()),
        missed=Misses(
            ttft=int((smooth & ~in_time).sum()),
            tpot=int((in_time & ~smooth).sum()),
            both=int((~in_time & ~smooth).sum()),
        ),
        ceiling=float(feasible[inside].mean()) if feasible is not None else float("nan"),
        by_class={name: _share(met, groups[name]) for name in SLO_CLASSES},
        by_family={name: _share(met, groups[name]) for name in part.families},
        ceilings={}
        if feasible is None
        else {name: _share(feasible[inside], group).goodput for name, group in groups.items()},
        ttft=Quantiles.of(ttft),
        tpot=Quantiles.of(tpot),
        e2e=Quantiles.of(e2e),
        slowdown=Quantiles.of(slowdown),
        slowdown_mean=float(slowdown.mean()) if len(slowdown) else float("nan"),
        itl_p99=inter_token_p99(rows, part),
        max_stall=int(rows["max_stall"].max()) / PS_PER_S,
        beyond_3x=1.0 - float(met_targets(rows, part, 12).mean()),
        max_delay=float(np.max(ttft[np.isfinite(ttft)], initial=0.0)),
        scaled={f"{q / 4:g}": float(met_targets(rows, part, q).mean()) for q in SCALE_QUARTERS},
        balance={
            role: pool_balance(
                rows["prefill" if role == "prefill" else "decode"], tokens[role].astype(np.int64), size
            )
            for role, size in pools.items()
        },
        goodput_per_gpu=int(met.sum()) / window.seconds / gpus,
        preemptions=float(rows["preemptions"].mean()) if (rows["preemptions"] >= 0).all() else float("nan"),
        segment_requests=tuple(np.bincount(segment, minlength=segments).tolist()),
        segment_met=tuple(np.bincount(segment[met], minlength=segments).tolist()),
    )


def _share(met: Bools, group: Bools) -> Share:
    return Share(requests=int(group.sum()), met=int((met & group).sum()))


def _seconds(times: Ints, reached: Bools) -> Floats:
    return np.where(reached, times / PS_PER_S, np.inf)


def _over_mean(values: Floats, statistic: float) -> float:
    mean = float(values.mean())
    return statistic / mean if mean > 0 else float("nan")
