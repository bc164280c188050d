"""Hand-sized engines and traces for scenarios whose times a reader can compute on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs.cluster import EngineSpec
from disaggroute.envs.simulator.reference import ReferenceRun
from disaggroute.envs.trace import LOOSE, TIGHT, Trace

__all__ = ["LOOSE", "TIGHT", "assign", "engine", "requests", "times"]


def engine(**changes: Any) -> EngineSpec:
    """Unless changed, a decode step lasts 10 ps, a prefill step 20 ps + 1 ps per token, a mixed one 30 + 1.

    Blocks of 4 tokens leave in 3 ps each and travel for 5 ps.
    """
    fields: dict[str, Any] = {
        "base_decode": 10,
        "base_prefill": 20,
        "base_mixed": 30,
        "per_context": 0,
        "per_token": 1,
        "per_token_sq": 0,
        "block_size": 4,
        "num_blocks": 100,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 100,
        "max_model_len": 1000,
        "egress_per_block": 3,
        "latency": 5,
        "lease": 50,
    } | changes
    fields.setdefault("batch", np.zeros(fields["max_num_seqs"] + 1, np.int64))
    return EngineSpec(**fields)


def requests(*rows: tuple[int, int, int], slo: list[int] | None = None) -> Trace:
    """A trace of (arrival, prompt, output)."""
    arrival, prompt, output = np.array(rows, np.int64).reshape(-1, 3).T
    n = len(rows)
    return Trace(
        arrival=arrival,
        prompt=prompt.astype(np.int32),
        output=output.astype(np.int32),
        slo=np.array(slo if slo is not None else [TIGHT] * n, np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.full(n, 1000, np.int64),
        tpot_target=np.full(n, 1000, np.int64),
    )


def assign(*pairs: tuple[int, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """An assignment from (prefill, decode) pairs."""
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def times(run: ReferenceRun, column: str) -> list[int]:
    """One column of the records."""
    values: list[int] = run.records[column].tolist()
    return values
