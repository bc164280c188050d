"""Goodput of the compared requests, measured and simulated, run by run and in segments of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ...envs.records import FINISHED
from ..metrics import met_targets
from ..summary import SEGMENT_S
from .replay import Replay

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Goodputs:
    """Both goodputs of a run, over the requests that are compared.

    Attributes:
        label: the policy.
        seed: of the trace.
        requests: compared.
        measured: share of them that met both targets.
        without: share of them that does so in the simulator.
        with_: the same with the overhead on every TTFT.
        window: requests that arrived in the measurement window, whatever became of them.
        all_measured: share of those that met both targets.
        failed: of the window, failed and rejected.
        retried: replayed, not compared.
        shortened: replayed with fewer tokens.
        left_out: not replayed.
    """

    label: str
    seed: int
    requests: int
    measured: float
    without: float
    with_: float
    window: int
    all_measured: float
    failed: int
    retried: int
    shortened: int
    left_out: int


def goodputs(run: Replay, overhead: int) -> Goodputs:
    """Both goodputs of a run.

    Args:
        run: a live run beside its replay.
        overhead: ps that are added to every simulated TTFT.
    """
    stored, which = run.live.stored, run.compared
    measured = stored.measured
    return Goodputs(
        label=run.live.label,
        seed=run.live.seed,
        requests=run.requests,
        measured=float(stored.met[which].mean()),
        without=float(met(run, 0)[which].mean()),
        with_=float(met(run, overhead)[which].mean()),
        window=int(measured.sum()),
        all_measured=float(stored.met[measured].mean()),
        failed=int((stored.records["status"][measured] != FINISHED).sum()),
        retried=run.retried,
        shortened=run.shortened,
        left_out=run.left_out,
    )


def met(run: Replay, overhead: int) -> Bools:
    """(N,) which requests meet both targets in the simulator, with an overhead on every TTFT, ps."""
    return met_targets(with_overhead(run.simulated, overhead), run.live.stored.trace)


def with_overhead(records: npt.NDArray[Any], overhead: int) -> npt.NDArray[Any]:
    """Simulated records as a client would see them: every request arrived so many ps earlier."""
    seen = records.copy()
    seen["arrival"] = np.where(records["arrival"] >= 0, records["arrival"] - overhead, -1)
    return seen


def segments(runs: Sequence[Replay], overhead: int) -> tuple[Floats, Floats, Floats]:
    """Compared requests of one policy in contiguous segments of `SEGMENT_S`, one run after the other.

    A request belongs to the segment in which it was to be sent, so that policies share the segments of a trace.

    Returns:
        (M,) requests, (M,) those that met both targets as measured, and (M,) as simulated.
    """
    parts = []
    for run in runs:
        place = run.live.due // round(SEGMENT_S * PS_PER_S)
        window = place[run.live.stored.measured]
        place, count = place - window.min(), int(window.max() - window.min()) + 1
        columns = (run.compared, run.compared & run.live.stored.met, run.compared & met(run, overhead))
        parts.append(np.stack([np.bincount(place[column], minlength=count) for column in columns]))
    requests, measured, simulated = np.concatenate(parts, axis=1).astype(np.float64)
    return requests, measured, simulated
