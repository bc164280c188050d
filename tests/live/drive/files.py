"""The two files of a run, as a client and a router would have written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.drive.attempt import Attempt
from disaggroute.live.drive.observation import Observation
from disaggroute.live.record_log import RecordLog

CLUSTER = LiveCluster.load(
    {
        "name": "small",
        "model": "tiny",
        "profile": "a40-qwen2.5-3b",
        "prefill": [{"url": "http://127.0.0.1:1"}],
        "decode": [{"url": "http://127.0.0.1:2"}, {"url": "http://127.0.0.1:3", "name": "big"}],
    }
)

ORIGIN_NS, ROUTER_NS = 5_000_000, 2_000_000
"""The trace begins 3 ms after the router's clock."""

SHIFT = (ROUTER_NS - ORIGIN_NS) * 1_000


def about(requests: int) -> dict[str, Any]:
    return {"requests": requests, "trace": "abc", "policy": "card", "seed": 3, "time_scale": 1.0}


def observation(index: int, **changes: Any) -> Observation:
    times = {"sent": 1_000 + index, "first": 5_000 + index, "last": 9_000 + index, "end": 9_500 + index}
    fields = {"index": index, "id": f"run-{index}", "due": 900 + index, **times, "max_stall": 700, "generated": 4}
    return Observation(**(fields | {"http_status": 200, "status": "finished"} | changes))


def record(index: int, **changes: Any) -> dict[str, Any]:
    """The router's, on its own clock."""
    times = {"arrival": 1_100, "prefill_start": 1_200, "prefill_end": 2_000, "decode_start": 2_100}
    times |= {"first_token": 4_900, "decided": 1_150, "polled": 50}
    fields: dict[str, Any] = {name: time - SHIFT + index for name, time in times.items()}
    fields |= {"id": f"run-{index}", "status": "finished", "predicted": 7, "prefill": "prefill/0", "decode": "big"}
    fields |= {"attempts": 1, "fallback": None, "probability": 0.5}
    fields |= {"seen_prefill": list(range(7)), "seen_decode": list(range(10, 21))}
    return fields | changes


def write(
    attempt: Attempt,
    seen: list[Observation],
    records: list[dict[str, Any]],
    *,
    ended: bool = True,
    said: dict[str, Any] | None = None,
) -> None:
    """Both files of an attempt."""
    attempt.path.mkdir(parents=True, exist_ok=True)
    client = RecordLog(attempt.client, {**(said or about(len(seen))), "origin_ns": ORIGIN_NS})
    for each in seen:
        client.write(each.line())
    if ended:
        client.write({"ended": True, "requests": len(seen), "ejected": []})
    client.close()
    router = RecordLog(attempt.router, {"started_ns": ROUTER_NS, "time_scale": 1.0})
    for line in records:
        router.write(line)
    router.close()


def attempt(place: Path, number: int = 1) -> Attempt:
    return Attempt(place / f"attempt-{number}", number)
