"""A live run replayed in the simulator: the same requests at the same instants to the same instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.cluster import Cluster
from ...envs.records import FINISHED, RECORD, REJECTED
from ...envs.simulator import simulate
from ...envs.trace import Trace
from .live_run import LiveRun

Bools = npt.NDArray[np.bool_]

FEWEST = 30
"""Requests of a run that must be comparable."""


class TooFew(ValueError):
    """A run of which hardly anything finished."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A live run beside its replay, row by row.

    Attributes:
        live: the run as it was measured.
        simulated: (N,) of dtype RECORD on the same clock; `arrival` is when the request was sent to its first engine;
            rejected where it was left out.
        compared: (N,) whether both finished, in the measurement window.
    """

    live: LiveRun
    simulated: npt.NDArray[Any]
    compared: Bools

    @property
    def requests(self) -> int:
        """Requests that are compared."""
        return int(self.compared.sum())

    @property
    def left_out(self) -> int:
        """Requests that are not replayed: rejected, or failed before their prefill had ended."""
        return int((self.live.output == 0).sum())

    @property
    def shortened(self) -> int:
        """Requests that broke off and are replayed with the tokens that came."""
        failed = self.live.stored.records["status"] != FINISHED
        return int((failed & (self.live.output > 0)).sum())

    @property
    def retried(self) -> int:
        """Requests that finished after a further attempt: replayed from their last one, and not compared."""
        finished = self.live.stored.records["status"] == FINISHED
        return int((finished & (self.live.attempts > 1)).sum())


def replay(live: LiveRun, cluster: Cluster) -> Replay:
    """Replays a run with its own routing, lengths and instants.

    Raises:
        TooFew: fewer than `FEWEST` requests can be compared.
        ValueError: a recorded instance is not in the cluster, or a request does not fit its engines.
    """
    sent, output, trace = live.sent, live.output, live.stored.trace
    records = live.stored.records
    kept = np.flatnonzero(output > 0)
    order = kept[np.argsort(sent[kept], kind="stable")]
    earliest = int(sent[order].min(initial=0))  # A request may have been sent before the clock's zero.
    requests = Trace(
        arrival=sent[order] - earliest,
        prompt=trace.prompt[order],
        output=output[order].astype(np.int32),
        slo=trace.slo[order],
        family=trace.family[order],
        ttft_target=trace.ttft_target[order],
        tpot_target=trace.tpot_target[order],
        families=trace.families,
        name=f"{live.label}, seed {live.seed}",
    )
    routing = tuple(records[stage][order].astype(np.int64) for stage in ("prefill", "decode"))
    result = simulate(requests, cluster, assignment=(routing[0], routing[1])).records
    simulated = np.zeros(len(records), RECORD)
    for name in RECORD.names or ():
        simulated[name] = -1
    simulated["status"] = REJECTED
    simulated[order] = _moved(result, earliest)
    compared = live.comparable & (simulated["status"] == FINISHED)
    if compared.sum() < FEWEST:
        raise TooFew(
            f"{live.label}, seed {live.seed}: {int(compared.sum())} requests finished in the window; "
            f"a comparison needs at least {FEWEST}"
        )
    return Replay(live, simulated, compared)


TIMES = ("arrival", "prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end", "first_token")
LATER = ("last_token", "end")


def _moved(records: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
    """Records with every time that was reached moved by so many ps."""
    moved = records.copy()
    for name in (*TIMES, *LATER):
        moved[name] = np.where(records[name] >= 0, records[name] + by, -1)
    return moved
