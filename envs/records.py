"""Records: one row per request, what happened to it (docs/model.md, "Records")."""

from __future__ import annotations

import numpy as np

FINISHED, FAILED, REJECTED = 0, 1, 2
"""Values of `status`."""

SCHEMA_VERSION = 1

RECORD = np.dtype(
    [
        ("arrival", "i8"),
        ("prefill_start", "i8"),
        ("prefill_end", "i8"),
        ("reserve", "i8"),
        ("transfer_start", "i8"),
        ("transfer_end", "i8"),
        ("first_token", "i8"),
        ("last_token", "i8"),
        ("end", "i8"),
        ("max_stall", "i8"),
        ("predicted", "i4"),
        ("generated", "i4"),
        ("preemptions", "i4"),
        ("reroutes", "i4"),
        ("prefill", "i2"),
        ("decode", "i2"),
        ("router", "i2"),
        ("status", "i2"),
    ]
)
"""Times in ps (−1: not reached, or unseen on real engines), lengths in tokens; 104 bytes a row.

On real engines `preemptions` is −1: they do not tell."""

PREFILL_VIEW = ("queued", "queued_tokens", "queued_strict", "used", "running", "waiting", "available")
"""Columns of the integer view of a prefill instance at an admission, in order."""

DECODE_VIEW = (
    "in_flight",
    "pending",
    "committed",
    "committed_output",
    "remaining_output",
    "context",
    "strict",
    "used",
    "running",
    "waiting",
    "available",
)
"""Columns of the integer view of a decode instance at an admission, in order. A mixed instance has both views."""

DECISION = np.dtype(
    [("time", "i8"), ("poll_time", "i8"), ("request", "i4"), ("predicted", "i4")]
    + [(f"prefill_{name}", "i4") for name in PREFILL_VIEW]
    + [(f"decode_{name}", "i4") for name in DECODE_VIEW]
    + [("probability", "f8"), ("prefill", "i4"), ("decode", "i4")]
)
"""One row per decision: what the router saw of the pair (`prefill`, `decode`) that it chose; 112 bytes."""
