"""Phases of requests on their instances, and when a miss became certain, from records (docs/model.md, "Records").

A record of the simulator and one of a live cluster have the same fields, so nothing here knows where it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .records import FINISHED
from .trace import Trace

Ints = npt.NDArray[np.int64]

PHASES = {
    "prefill": ("queue", "prefill", "held"),
    "decode": ("offered", "transfer", "join", "decode"),
    "mixed": ("queue", "prefill", "decode"),
}
"""What a request goes through on an instance of each role, in order, without a gap.

`held`: its KV stays on the prefill instance until the transfer ends. `offered`: it waits until the decode instance
reserves blocks. `join`: from the end of the transfer to its first token, so its first step is part of it (a record
does not say when that step began); where the first token comes from prefill, `decode` starts with the transfer's end.
"""


@dataclass(frozen=True, eq=False)
class Leg:
    """What N requests went through on the instances of one role.

    Attributes:
        role: prefill, decode or mixed.
        instance: (N,) index within the pool, −1 for a request that never came to this role.
        edges: (phases + 1, N) ps, not decreasing: phase k of PHASES[role] lasts from row k to row k + 1. What a
            request did not reach has no length.
        sending: (2, N) ps, start and end of the transfer proper, after the queue of the egress server; no length
            where there was none.
        kv: (N,) tokens of KV that a request has here from row 1 of `edges` to its last row; 0 if it never had any.
        grown: (N,) tokens that decoding adds to them.
        growing: (2, N) ps, from when to when it adds them.
    """

    role: str
    instance: npt.NDArray[np.int64]
    edges: Ints
    sending: Ints
    kv: Ints
    grown: Ints
    growing: Ints

    @property
    def end(self) -> Ints:
        """(N,) ps at which a request leaves the instance."""
        end: Ints = self.edges[-1]
        return end


def legs(
    records: npt.NDArray[Any], trace: Trace, *, aggregated: bool, routed: Ints | None = None
) -> tuple[Leg, ...]:
    """The legs of requests that have all ended: prefill and decode, or mixed.

    KV that stays held after a failure, until the lease ends, is not in records. A re-routed request has the phases of
    its last attempt.

    Args:
        records: (N,) of dtype RECORD.
        trace: (N,) the requests.
        aggregated: whether the instances are mixed.
        routed: (N,) ps, the last decision about each request; its arrival unless given.
    """
    start = records["arrival"] if routed is None else np.maximum(records["arrival"], routed)
    prompt = trace.prompt.astype(np.int64)
    assigned = records["prefill"] >= 0
    generated = np.maximum(records["generated"].astype(np.int64) - 1, 0)
    none = np.zeros((2, len(records)), np.int64)
    if aggregated:
        edges = _edges(records, start, ("prefill_start", "prefill_end"), records["end"])
        instance = np.where(assigned, records["decode"], -1).astype(np.int64)
        growing = np.stack([edges[2], np.maximum(edges[2], records["last_token"])])
        kv = np.where(records["prefill_start"] >= 0, prompt, 0)
        return (Leg("mixed", instance, edges, none, kv, generated, growing),)
    records = _with_transfers(records)
    sent = records["transfer_end"]
    left = np.where(sent >= 0, sent, records["end"])
    edges = _edges(records, start, ("prefill_start", "prefill_end"), left)
    began = np.where(records["transfer_start"] >= 0, records["transfer_start"], left)
    sending = np.stack([np.minimum(began, left), left])
    kv = np.where(records["prefill_start"] >= 0, prompt, 0)
    instance = np.where(assigned, records["prefill"], -1).astype(np.int64)
    first = Leg("prefill", instance, edges, sending, kv, np.zeros_like(prompt), none)

    # A request whose only token came from prefill is finished without a transfer.
    reached = (records["prefill_end"] >= 0) & ~((records["status"] == FINISHED) & (records["reserve"] < 0))
    edges = _edges(records, records["prefill_end"], ("reserve", "transfer_end", "first_token"), records["end"])
    instance = np.where(reached, records["decode"], -1).astype(np.int64)
    kv = np.where(records["reserve"] >= 0, prompt, 0)
    # What is decoded here starts after the join: from the first token on, or from the transfer if that came before.
    growing = np.stack([edges[3], np.maximum(edges[3], records["last_token"])])
    second = Leg("decode", instance, edges, sending, kv, generated, growing)
    return first, second


def _with_transfers(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Records in which all between prefill and first token counts as transfer, where nobody saw it: on real engines."""
    hidden = (records["reserve"] < 0) & (records["prefill_end"] >= 0)
    hidden &= records["first_token"] > records["prefill_end"]
    if not hidden.any():
        return records
    filled = records.copy()
    for name, of in (("reserve", "prefill_end"), ("transfer_start", "prefill_end"), ("transfer_end", "first_token")):
        filled[name][hidden] = records[of][hidden]
    return filled


def certain_misses(records: npt.NDArray[Any], trace: Trace) -> tuple[Ints, Ints]:
    """When each request's miss of a target became certain, (N,) and (N,) ps, −1 where it did not.

    TTFT: the target has passed without a first token. TPOT: more than (o − 1) targets have passed since the first
    token without the last one. A request that fails first has missed by that, at its `end`.
    """
    first = np.where(records["first_token"] >= 0, records["first_token"], records["end"])
    late = records["arrival"] + trace.ttft_target
    gaps = trace.output.astype(np.int64) - 1
    slow = records["first_token"] + gaps * trace.tpot_target
    begun = records["first_token"] >= 0
    return (
        np.where((first > late) & (records["prefill"] >= 0), late, -1),
        np.where(begun & (gaps > 0) & (records["end"] > slow), slow, -1),
    )


def _edges(records: npt.NDArray[Any], start: Ints, columns: tuple[str, ...], end: Ints) -> Ints:
    """Edges of phases; a time that was not reached becomes the end."""
    rows = [np.where(records[name] >= 0, records[name], end) for name in columns]
    edges = np.stack([start, *rows, end]).astype(np.int64)
    return np.minimum(np.maximum.accumulate(edges, axis=0), np.maximum(start, end))
