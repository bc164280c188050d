"""What an engine has counted since it started, from `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass

from .engine_metrics import MissingMetric, values

PREFILL_TIME = b"vllm:request_prefill_time_seconds"
"""From the first schedule of a request to its first token. For one that pulled its KV vLLM 0.32 counts from its
machine's start: only those of requests without a second leg mean anything."""

TRANSFER_TIME = b"vllm:nixl_xfer_time_seconds"
BYTES = b"vllm:nixl_bytes_transferred"
"""Of each pull of KV; told with the engine's next answer."""


@dataclass(frozen=True)
class Counted:
    """What an engine has counted; −1 where it does not say.

    Attributes:
        requests: finished ones.
        prefill_s: sum of their times from the first schedule to the first token, s of the engine.
        moved_bytes: KV that it has pulled.
        transfers: how often.
        transfer_s: sum of their times, s of the engine.
    """

    requests: float
    prefill_s: float
    moved_bytes: float
    transfers: float
    transfer_s: float

    @staticmethod
    def of(metrics: bytes, time_scale: float) -> Counted:
        """Reads it from `/metrics`.

        Args:
            metrics: Prometheus exposition.
            time_scale: wall seconds of a second of the engine.
        """
        prefill, transfer = _sum(metrics, PREFILL_TIME + b"_sum"), _sum(metrics, TRANSFER_TIME + b"_sum")
        return Counted(
            _sum(metrics, PREFILL_TIME + b"_count"),
            prefill / time_scale if prefill >= 0 else -1.0,
            _sum(metrics, BYTES + b"_sum"),
            _sum(metrics, BYTES + b"_count"),
            transfer / time_scale if transfer >= 0 else -1.0,
        )


def _sum(metrics: bytes, name: bytes) -> float:
    try:
        return sum(values(metrics, (name,), 1e18))
    except MissingMetric:
        return -1.0
