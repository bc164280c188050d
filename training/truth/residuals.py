"""Where the model's error comes from: residuals against prompt length, concurrency, time and instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from .quantities import TTFT, Quantity, values
from .replay import Replay

Floats = npt.NDArray[np.float64]

BINS = 8
"""Bins of a driver that is a number, with about as many requests in each."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of a quantity against one thing that may drive them.

    Attributes:
        quantity: which.
        driver: prompt, concurrency, time or instance.
        axis: the driver in words, with its unit.
        at: (N,) its value for each request.
        residual: (N,) measured − simulated, s; the overhead is taken off where it is known.
        bins: by bin, rising: least and largest value, requests, and first quartile, median and third quartile of
            the residual, s.
        explained: share of the mean absolute residual (about its median) that the bins' medians take away; what
            chance alone would take is not taken off.
    """

    quantity: Quantity
    driver: str
    axis: str
    at: Floats
    residual: Floats
    bins: tuple[tuple[float, float, int, float, float, float], ...]
    explained: float


def residuals(replays: Sequence[Replay], quantity: Quantity, overhead: int, names: Sequence[str]) -> list[Residuals]:
    """Residuals of all runs together, against each driver.

    Args:
        replays: live runs beside their replays.
        quantity: TTFT, whose stage is the prefill, or TPOT, whose stage is the decode.
        overhead: ps, part of the measured TTFT.
        names: of the drivers that are wanted.
    """
    stage = "prefill" if quantity is TTFT else "decode"
    at: dict[str, list[Floats]] = {name: [] for name in names}
    found: list[Floats] = []
    for run in replays:
        records, trace = run.live.stored.records, run.live.stored.trace
        output = trace.output.astype(np.int64)
        arrival = run.simulated["arrival"] - overhead
        residual = values(records, output, quantity) - values(run.simulated, output, quantity, arrival)
        which = run.compared & np.isfinite(residual)
        found.append(residual[which])
        drivers = {
            "prompt": trace.prompt.astype(np.float64),
            "concurrency": concurrency(run, stage),
            "time": records["arrival"] / PS_PER_S,
            "instance": records["decode" if stage == "decode" else "prefill"].astype(np.float64),
        }
        for name in names:
            at[name].append(drivers[name][which])
    pooled = np.concatenate(found)
    return [_against(quantity, name, stage, np.concatenate(at[name]), pooled) for name in names]


DRIVERS = ("prompt", "concurrency", "time", "instance")


def concurrency(run: Replay, stage: str) -> Floats:
    """(N,) requests that were on a request's instance when it came there, itself included, as measured.

    On a prefill instance they are there until their prefill has ended, on a decode instance until their end.
    """
    records = run.live.stored.records
    first = np.where(records["prefill_end"] >= 0, records["prefill_end"], run.live.sent)
    begin, leave = (run.live.sent, first) if stage == "prefill" else (first, records["end"])
    counts = np.zeros(len(records))
    for instance in np.unique(records[stage][records[stage] >= 0]):
        here = np.flatnonzero(records[stage] == instance)
        came = np.searchsorted(np.sort(begin[here]), begin[here], "right")
        left = np.searchsorted(np.sort(leave[here]), begin[here], "left")
        counts[here] = came - left
    return np.maximum(counts, 1.0)


def _against(quantity: Quantity, driver: str, stage: str, at: Floats, residual: Floats) -> Residuals:
    axis = {
        "prompt": "prompt, tokens",
        "concurrency": f"requests on the {stage} instance",
        "time": "arrival, s",
        "instance": f"{stage} instance",
    }[driver]
    place = _bins(at, whole=driver == "instance")
    bins = []
    left = np.abs(residual - np.median(residual))
    rest = left.copy()
    for k in np.unique(place):
        inside = place == k
        low, median, high = (float(q) for q in np.quantile(residual[inside], (0.25, 0.5, 0.75)))
        rest[inside] = np.abs(residual[inside] - median)
        bins.append((float(at[inside].min()), float(at[inside].max()), int(inside.sum()), low, median, high))
    explained = 1.0 - float(rest.mean() / left.mean()) if left.any() else 0.0
    return Residuals(quantity, driver, axis, at, residual, tuple(bins), explained)


def _bins(at: Floats, *, whole: bool) -> npt.NDArray[np.int64]:
    """The bin of each value: its own where values are numbers of instances, else one of equal shares."""
    if whole:
        return at.astype(np.int64)
    edges = np.unique(np.quantile(at, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.searchsorted(edges, at, "right").astype(np.int64)
