"""The client's times and the router's records, joined into the arrays that a simulation gives.

A record's `arrival` is when the client sent the request: what happened before that is the client's delay, not the
cluster's, and stands beside it (`lateness_ps`). First and last token are as the client saw them, the legs as the router
did. All times are ps of the engines, from the start of the trace on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...envs.backend import Outcome
from ...envs.records import DECISION, DECODE_VIEW, FAILED, FINISHED, PREFILL_VIEW, RECORD, REJECTED
from ..cluster_file import LiveCluster
from .attempt import Kept
from .observation import Observation

UNSEEN = ("prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end", "first_token", "last_token")

OF_ROUTER = {"decode_start_ps": "decode_start", "router_arrival_ps": "arrival", "router_first_token_ps": "first_token"}
"""Columns of a live run alone that are times of the router's records; −1: not reached."""

OWN_TIMES = ("due_ps", "lateness_ps", *OF_ROUTER)
"""All columns of a live run alone that are times."""


def assemble(kept: Kept, cluster: LiveCluster) -> Outcome:
    """Makes records and decisions of a whole attempt.

    Args:
        kept: the attempt.
        cluster: whose engines the router names.

    Returns:
        Records; the last decision of each request that was routed; and as columns `due_ps`, `lateness_ps`,
        `decode_start_ps`, `router_arrival_ps`, `router_first_token_ps`, `http_status`, `attempts`, `error`, `fallback`.

    Raises:
        ValueError: the router names an engine that the cluster does not have, or a file is damaged.
    """
    try:
        return _assembled(kept, cluster)
    except (KeyError, TypeError, OverflowError, AssertionError):
        raise ValueError(f"{kept.path} holds damaged records; delete it and start again") from None


def _assembled(kept: Kept, cluster: LiveCluster) -> Outcome:
    n = len(kept.seen)
    records = np.zeros(n, RECORD)
    for name in UNSEEN:
        records[name] = -1
    records["prefill"] = records["decode"] = records["predicted"] = records["preemptions"] = -1
    own: dict[str, Any] = {name: np.full(n, -1, np.int64) for name in OWN_TIMES}
    own |= {"http_status": np.zeros(n, np.int16), "attempts": np.zeros(n, np.int16)}
    own |= {"error": [None] * n, "fallback": [None] * n}
    on_trace = _router_clock(kept)
    places = {cluster.engine_name(role, k): k for role, k, _ in cluster.engines()}
    decisions = []
    for k, (seen, record) in enumerate(zip(kept.seen, kept.records, strict=True)):
        row = records[k]
        _client(row, seen)
        own["due_ps"][k], own["lateness_ps"][k] = seen.due, max(seen.lateness, 0)
        own["http_status"][k], own["error"][k] = seen.http_status, seen.error
        row["status"] = _status(seen, record)
        if record is None:
            continue
        _router(row, record, on_trace, places, bool(cluster.mixed))
        own["attempts"][k], own["fallback"][k] = record["attempts"], record["fallback"]
        for column, name in OF_ROUTER.items():
            own[column][k] = on_trace(record[name])
        if record.get("decided") is not None:
            decisions.append(_decision(k, row, record, on_trace))
    return Outcome(records, np.array(decisions, DECISION), own)


def _router_clock(kept: Kept) -> Callable[[int], int]:
    """Turns the router's times into those of the trace; −1 stays."""
    ahead = (kept.router["started_ns"] - kept.client["origin_ns"]) * 1_000
    shift = round(ahead / kept.client["time_scale"])
    return lambda time: time + shift if time >= 0 else -1


def _client(row: Any, seen: Observation) -> None:
    row["arrival"], row["end"] = seen.sent, seen.end
    row["first_token"], row["last_token"] = seen.first, seen.last
    row["max_stall"], row["generated"] = seen.max_stall, seen.generated


def _status(seen: Observation, record: dict[str, Any] | None) -> int:
    if seen.status == "finished":
        return FINISHED
    refused = record["status"] == "rejected" if record is not None else seen.status == "rejected"
    return REJECTED if refused else FAILED


def _router(
    row: Any, record: dict[str, Any], on_trace: Callable[[int], int], places: dict[str, int], aggregated: bool
) -> None:
    ends = "first_token" if aggregated else "prefill_end"  # A mixed engine's prefill gives the first token.
    row["prefill_start"], row["prefill_end"] = on_trace(record["prefill_start"]), on_trace(record[ends])
    row["predicted"] = record["predicted"]
    row["reroutes"] = max(record["attempts"] - 1, 0)
    for leg in ("prefill", "decode"):
        name = record[leg]
        if name is not None:
            if name not in places:
                raise ValueError(f"request {record['id']} went to {name}, which the cluster does not have")
            row[leg] = places[name]


def _decision(index: int, row: Any, record: dict[str, Any], on_trace: Callable[[int], int]) -> tuple[Any, ...]:
    """A row of DECISION."""
    seen = (*record["seen_prefill"], *record["seen_decode"])
    assert len(seen) == len(PREFILL_VIEW) + len(DECODE_VIEW)
    times = on_trace(record["decided"]), on_trace(record["polled"])
    chosen = int(row["prefill"]), int(row["decode"])
    return (*times, index, record["predicted"], *seen, record["probability"], *chosen)
