"""Router constants: what a router believes about the speed and size of each instance.

They come from a calibration of the engines (tau) and from their time model. A wrong calibration is
simulated by changing these and nothing in the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import catalog
from .cluster import PS_PER_S, Cluster, EngineSpec

CALIBRATION_SEQUENCES = 16
"""Concurrency of the decode calibration."""

CALIBRATION_CONTEXT = 1_024
"""Context of each sequence of the decode calibration, tokens."""

CALIBRATION_PROMPT = 1_000
"""Prompt of the prefill calibration, tokens."""


def prefill_time(engine: EngineSpec, tokens: int) -> float:
    """Seconds to prefill one prompt on the idle engine, in chunks of `max_num_batched_tokens`."""
    return engine.prompt_time(tokens) / PS_PER_S


def tau_prefill(engine: EngineSpec) -> float:
    """Prefill time per prompt token, s: prefill(1,000) / 1,000."""
    return prefill_time(engine, CALIBRATION_PROMPT) / CALIBRATION_PROMPT


def tau_decode(
    engine: EngineSpec, sequences: int = CALIBRATION_SEQUENCES, context: int = CALIBRATION_CONTEXT
) -> float:
    """Decode time per token, s: the step time with `sequences` sequences of `context` tokens each.

    Every sequence gets one token per step, so the step time is what a token of one request costs. An
    engine that runs fewer sequences than the calibration is measured at its limit.
    """
    sequences = min(sequences, engine.max_num_seqs)
    return engine.step_time(sequences, sequences * context) / PS_PER_S


def tau_decode_single(engine: EngineSpec, context: int = CALIBRATION_CONTEXT) -> float:
    """Decode time per token of a single stream, s."""
    return tau_decode(engine, 1, context)


@dataclass(frozen=True, eq=False)
class RouterConstants:
    """Constants per instance, in the cluster's instance order (prefill, then decode; or mixed).

    Attributes:
        tau_prefill: (I,) s per prompt token.
        tau_decode: (I,) s per output token, calibrated under concurrency.
        tau_decode_single: (I,) s per output token of a single stream.
        kv_capacity: (I,) tokens.
        base_prefill: (I,) s, constant part of a prefill step.
        base_decode: (I,) s, constant part of a decode step.
        base_mixed: (I,) s, constant part of a step with both.
        per_sequence: (I,) s per decoding sequence; for a table A, its mean slope up to the
            calibration's concurrency.
        per_context: (I,) s per token of context.
        per_token: (I,) s per prefill token.
        per_token_sq: (I,) s per squared prefill token.
        prefills: number of prefill instances; those before this index. 0 when aggregated.
    """

    tau_prefill: npt.NDArray[np.float64]
    tau_decode: npt.NDArray[np.float64]
    tau_decode_single: npt.NDArray[np.float64]
    kv_capacity: npt.NDArray[np.int64]
    base_prefill: npt.NDArray[np.float64]
    base_decode: npt.NDArray[np.float64]
    base_mixed: npt.NDArray[np.float64]
    per_sequence: npt.NDArray[np.float64]
    per_context: npt.NDArray[np.float64]
    per_token: npt.NDArray[np.float64]
    per_token_sq: npt.NDArray[np.float64]
    prefills: int

    def __len__(self) -> int:
        """Number of instances."""
        return len(self.tau_prefill)

    def scaled(self, factor: float) -> RouterConstants:
        """All times multiplied by `factor`; capacities stay.

        Raises:
            ValueError: the factor is not above 0.
        """
        if not factor > 0:
            raise ValueError(f"scale is {factor}; it must be greater than 0")
        return replace(self, **{key: getattr(self, key) * factor for key in _times()})

    def overridden(self, **values: Any) -> RouterConstants:
        """Some fields replaced, each by a number for all instances or by an array of shape (I,).

        Raises:
            ValueError: an unknown field, a wrong shape, or a value that is negative or not finite.
        """
        allowed = [*_times(), "kv_capacity"]
        changed: dict[str, Any] = {}
        for key, value in values.items():
            if key not in allowed:
                raise ValueError(catalog.unknown("router constant", key, allowed))
            old = getattr(self, key)
            try:
                new = np.array(np.broadcast_to(np.asarray(value, old.dtype), old.shape))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"router constant {key} is {value!r}; it must be a number or {len(self)} of them"
                ) from error
            if not (np.isfinite(new).all() and (new >= 0).all()):
                raise ValueError(f"router constant {key} is {value!r}; it must be at least 0 and finite")
            changed[key] = new
        return replace(self, **changed)


def from_cluster(cluster: Cluster) -> RouterConstants:
    """The constants that a perfect calibration of this cluster would give."""
    engines = cluster.instances

    def seconds(key: str) -> npt.NDArray[np.float64]:
        return np.array([getattr(e, key) for e in engines], np.float64) / PS_PER_S

    return RouterConstants(
        tau_prefill=np.array([tau_prefill(e) for e in engines]),
        tau_decode=np.array([tau_decode(e) for e in engines]),
        tau_decode_single=np.array([tau_decode_single(e) for e in engines]),
        kv_capacity=np.array([e.num_blocks * e.block_size for e in engines], np.int64),
        base_prefill=seconds("base_prefill"),
        base_decode=seconds("base_decode"),
        base_mixed=seconds("base_mixed"),
        per_sequence=np.array([_slope(e) for e in engines]),
        per_context=seconds("per_context"),
        per_token=seconds("per_token"),
        per_token_sq=seconds("per_token_sq"),
        prefills=len(cluster.prefill),
    )


def _slope(engine: EngineSpec) -> float:
    size = min(CALIBRATION_SEQUENCES, engine.max_num_seqs)
    return float(engine.batch[size]) / size / PS_PER_S


def _times() -> list[str]:
    return [f.name for f in fields(RouterConstants) if f.name not in ("kv_capacity", "prefills")]
