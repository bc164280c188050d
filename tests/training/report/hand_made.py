"""Records made by hand, in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from disaggroute.envs.records import FAILED, FINISHED, RECORD, REJECTED
from disaggroute.envs.trace import Trace
from disaggroute.training.stored_records import StoredRecords

SECOND = 10**12
STATUS = {"finished": FINISHED, "failed": FAILED, "rejected": REJECTED}
TIMES = ("arrival", "prefill_start", "prefill_end", "reserve", "transfer_start", "transfer_end", "first_token")
LATER = ("last_token", "end", "max_stall")


def request(arrival: float, *times: float, **more: Any) -> dict[str, Any]:
    """A request that is decided at its arrival.

    Args:
        arrival: s.
        *times: start and end of the prefill, end of the transfer, first and last token; those after a failure are
            left out.
        **more: any other column, times in s.
    """
    names = ("prefill_start", "prefill_end", "transfer_end", "first_token", "last_token")
    row = dict(zip(names, times, strict=False)) | {"arrival": arrival, "decided": arrival} | more
    row.setdefault("status", "finished")
    if row.get("transfer_end", -1) >= 0:  # Reserved at the end of the prefill, and pulled at once.
        row = {"reserve": row["prefill_end"], "transfer_start": row["prefill_end"]} | row
    row.setdefault("end", row.get("last_token", arrival))
    return row


def run(*rows: dict[str, Any], families: tuple[str, ...] = ("trace",), warmup: float = 0.0) -> StoredRecords:
    """Records of requests sorted by arrival; those that are due in the first `warmup` seconds are not measured.

    A request is due at its `due`, by default when it arrives.
    """
    n = len(rows)
    records = np.zeros(n, RECORD)
    for name in (*TIMES, *LATER):
        records[name] = _ps(rows, name, 0.0 if name == "max_stall" else -1.0)
    for name in ("prefill", "decode"):
        records[name] = [row.get(name, -1 if row["status"] == "rejected" else 0) for row in rows]
    records["status"] = [STATUS[row["status"]] for row in rows]
    output = np.array([row.get("output", 11) for row in rows])
    trace = Trace(
        arrival=records["arrival"],
        prompt=np.array([row.get("prompt", 100) for row in rows]),
        output=output,
        slo=np.array([row.get("slo", 0) for row in rows]),
        family=np.array([row.get("family", 0) for row in rows]),
        ttft_target=_ps(rows, "ttft_target", 1.0),
        tpot_target=_ps(rows, "tpot_target", 0.1),
        families=families,
    )
    ttft, span = (records[a] - records[b] for a, b in (("first_token", "arrival"), ("last_token", "first_token")))
    met = (records["status"] == FINISHED) & (ttft <= trace.ttft_target) & (span <= (output - 1) * trace.tpot_target)
    due = _ps(tuple({"due": row["arrival"]} | row for row in rows), "due", 0.0)
    measured = due >= round(warmup * SECOND)
    return StoredRecords(records, trace, due, _ps(rows, "decided", -1.0), met, measured)


def _ps(rows: tuple[dict[str, Any], ...], name: str, otherwise: float) -> np.ndarray:
    seconds = [row.get(name, otherwise) for row in rows]
    return np.array([-1 if s == -1 else round(s * SECOND) for s in seconds], np.int64)
