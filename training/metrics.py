"""The numbers of one run, from its records and its trace (integer comparisons, seconds out).

Every request that arrives in the measurement window counts, whatever became of it: one that failed or was
rejected has missed its targets and has an infinite delay. So no denominator depends on the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ..envs.cluster import PS_PER_S
from ..envs.records import FAILED, FINISHED, REJECTED
from ..envs.trace import SLO_CLASSES, Trace

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCALE_QUARTERS = (2, 3, 4, 5, 6, 8, 10, 12)
"""Scales of the targets at which goodput is reported, in quarters (0.5 to 3)."""

SEGMENT_S = 10.0
"""Length of the contiguous segments whose counts are kept for the block bootstrap, seconds."""


@dataclass(frozen=True)
class Window:
    """Measurement window: requests that arrive in [start, end) count; ps."""

    start: int
    end: int

    @classmethod
    def after_warmup(cls, warmup_s: float, duration_s: float) -> Window:
        """The window of `duration_s` seconds that follows a warm-up of `warmup_s` seconds."""
        start = round(warmup_s * PS_PER_S)
        return cls(start, start + round(duration_s * PS_PER_S))

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start) / PS_PER_S

    def holds(self, trace: Trace) -> Bools:
        """(N,) which requests count."""
        return (trace.arrival >= self.start) & (trace.arrival < self.end)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Quantiles(_Frozen):
    """Nearest-rank quantiles; infinite where that many requests never got there, NaN without requests."""

    p50: float
    p90: float
    p99: float
    p999: float

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        """Quantiles of (N,) values."""
        if len(values) == 0:
            return cls(p50=np.nan, p90=np.nan, p99=np.nan, p999=np.nan)
        # Nearest rank: interpolation between a finite delay and infinity means nothing.
        p50, p90, p99, p999 = np.quantile(values, (0.5, 0.9, 0.99, 0.999), method="inverted_cdf")
        return cls(p50=float(p50), p90=float(p90), p99=float(p99), p999=float(p999))


class Share(_Frozen):
    """`met` of `requests`."""

    requests: int
    met: int

    @property
    def goodput(self) -> float:
        """Share of requests that met both targets; NaN without requests."""
        return self.met / self.requests if self.requests else float("nan")


class Balance(_Frozen):
    """How evenly a pool was used: 0 and 1 when every instance got the same.

    Attributes:
        count_cv: coefficient of variation of the requests per instance.
        count_max: largest number of requests on an instance, over the mean.
        token_cv: as `count_cv`, of tokens (prompt tokens on prefill instances, output tokens elsewhere).
        token_max: as `count_max`, of tokens.
    """

    count_cv: float
    count_max: float
    token_cv: float
    token_max: float


class Summary(_Frozen):
    """What one run did in its measurement window.

    Attributes:
        requests: arrivals in the window.
        met: those that met both targets.
        failed: those that failed.
        rejected: those that were rejected.
        ceiling: share that meets both targets alone on the empty cluster (NaN when not given).
        by_class: met and requests per SLO class.
        by_family: met and requests per workload family.
        ttft: first token − arrival, s.
        tpot: (last token − first token)/(output tokens − 1), s; requests of one token are left out.
        e2e: last token − arrival, s.
        slowdown: E2E over E2E alone on the empty cluster.
        slowdown_mean: mean of the same.
        itl_p99: P99 of the gaps between tokens, s, see `inter_token_p99`.
        max_stall: longest gap between two tokens of a request, s.
        beyond_3x: share of requests that missed 3 × their targets.
        max_delay: largest TTFT of a request that got a first token, s.
        scaled: goodput with both targets multiplied by 0.5 … 3, key is the factor.
        balance: use of each pool, by role.
        goodput_per_gpu: requests that met their targets, per second of the window and GPU.
        preemptions: mean number per request.
        segment_requests: arrivals in each contiguous segment of `SEGMENT_S` seconds.
        segment_met: those of them that met both targets.
    """

    requests: int
    met: int
    failed: int
    rejected: int
    ceiling: float
    by_class: dict[str, Share]
    by_family: dict[str, Share]
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    slowdown: Quantiles
    slowdown_mean: float
    itl_p99: float
    max_stall: float
    beyond_3x: float
    max_delay: float
    scaled: dict[str, float]
    balance: dict[str, Balance]
    goodput_per_gpu: float
    preemptions: float
    segment_requests: tuple[int, ...]
    segment_met: tuple[int, ...]

    @property
    def goodput(self) -> float:
        """Share of requests that met both targets."""
        return Share(requests=self.requests, met=self.met).goodput

    def row(self) -> dict[str, float]:
        """One flat row for summary.csv; column names end in their unit."""
        row: dict[str, float] = {"requests": self.requests, "met": self.met}
        row |= {"failed": self.failed, "rejected": self.rejected}
        row |= {"goodput": self.goodput, "ceiling": self.ceiling}
        row |= {f"goodput_{name}": share.goodput for name, share in self.by_class.items()}
        row |= {f"goodput_{name}": share.goodput for name, share in self.by_family.items()}
        units = {"ttft": "_s", "tpot": "_s", "e2e": "_s", "slowdown": ""}
        for name, unit in units.items():
            quantiles: Quantiles = getattr(self, name)
            row |= {f"{name}_{q}{unit}": value for q, value in quantiles}
        row |= {"slowdown_mean": self.slowdown_mean, "itl_p99_s": self.itl_p99}
        row |= {"max_stall_s": self.max_stall, "max_delay_s": self.max_delay, "beyond_3x": self.beyond_3x}
        row |= {f"goodput_at_{scale}x": value for scale, value in self.scaled.items()}
        for role, balance in self.balance.items():
            row |= {f"{role}_{name}": value for name, value in balance}
        row |= {"goodput_per_gpu_per_s": self.goodput_per_gpu, "preemptions": self.preemptions}
        return row


def met_targets(records: npt.NDArray[Any], trace: Trace, quarters: int = 4) -> Bools:
    """Which requests met both targets, each multiplied by `quarters`/4.

    TTFT = first token − arrival; TPOT = (last − first)/(o − 1), and a one-token output meets any TPOT. Both
    are compared as integers: span ≤ (o − 1) · target.

    Args:
        records: (N,) of dtype RECORD, row i is request i of the trace.
        trace: the trace.
        quarters: scale of the targets in quarters.

    Returns:
        (N,) bool; failed and rejected requests are False.
    """
    finished = records["status"] == FINISHED
    ttft = records["first_token"] - records["arrival"]
    span = records["last_token"] - records["first_token"]
    gaps = trace.output.astype(np.int64) - 1
    in_time = ttft <= trace.ttft_target * quarters // 4
    smooth = (gaps == 0) | (span <= gaps * trace.tpot_target * quarters // 4)
    met: Bools = finished & in_time & smooth
    return met


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
    met = met_targets(rows, part)
    finished = rows["status"] == FINISHED
    ttft = _seconds(rows["first_token"] - rows["arrival"], rows["first_token"] >= 0)
    e2e = _seconds(rows["last_token"] - rows["arrival"], finished)
    gaps = part.output.astype(np.int64) - 1
    tpot = _seconds(rows["last_token"] - rows["first_token"], finished)[gaps > 0] / gaps[gaps > 0]
    slowdown = e2e / (alone[inside] / PS_PER_S) if alone is not None else np.empty(0)
    tokens = {"prefill": part.prompt, "decode": part.output, "mixed": part.output}
    segment = ((part.arrival - window.start) // round(SEGMENT_S * PS_PER_S)).astype(np.int64)
    segments = -(-(window.end - window.start) // round(SEGMENT_S * PS_PER_S))
    return Summary(
        requests=len(part),
        met=int(met.sum()),
        failed=int((rows["status"] == FAILED).sum()),
        rejected=int((rows["status"] == REJECTED).sum()),
        ceiling=float(feasible[inside].mean()) if feasible is not None else float("nan"),
        by_class={name: _share(met, part.slo == k) for k, name in enumerate(SLO_CLASSES)},
        by_family={name: _share(met, part.family == k) for k, name in enumerate(part.families)},
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
        preemptions=float(rows["preemptions"].mean()),
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
