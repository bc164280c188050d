"""What an engine has counted since it started, from `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass

from .engine_metrics import MissingMetric, values

PREFILL_TIME = b"vllm:request_prefill_time_seconds"
"""From the first schedule of a request to its first token. For one that pulled its KV vLLM 0.32 counts from its
machine's start: only those of requests without a second leg mean anything."""

FIRST_TOKENS = b"vllm:time_to_first_token_seconds"
GAPS = b"vllm:inter_token_latency_seconds"
"""From token to token of each request, by the clock of the process that computes them: a server that sends them late
changes nothing."""

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
        first_tokens: requests that have had their first token.
        gaps: tokens after the first ones.
        gap_s: sum of the times from each of a request's tokens to its next one, s of the engine.
    """

    requests: float
    prefill_s: float
    moved_bytes: float
    transfers: float
    transfer_s: float
    first_tokens: float
    gaps: float
    gap_s: float

    @staticmethod
    def of(metrics: bytes, time_scale: float) -> Counted:
        """Reads it from `/metrics`.

        Args:
            metrics: Prometheus exposition.
            time_scale: wall seconds of a second of the engine.
        """
        return Counted(
            _sum(metrics, PREFILL_TIME + b"_count"),
            _seconds(metrics, PREFILL_TIME, time_scale),
            _sum(metrics, BYTES + b"_sum"),
            _sum(metrics, BYTES + b"_count"),
            _seconds(metrics, TRANSFER_TIME, time_scale),
            _sum(metrics, FIRST_TOKENS + b"_count"),
            _sum(metrics, GAPS + b"_count"),
            _seconds(metrics, GAPS, time_scale),
        )


def _seconds(metrics: bytes, name: bytes, time_scale: float) -> float:
    found = _sum(metrics, name + b"_sum")
    return found / time_scale if found >= 0 else -1.0


def _sum(metrics: bytes, name: bytes) -> float:
    try:
        return sum(values(metrics, (name,), 1e18))
    except MissingMetric:
        return -1.0
