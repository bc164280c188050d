"""The cluster that a router believes in: the limits and rules of the block, with the times of its own constants."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from ..cluster import MAX_TIME_PS, MAX_TOKENS, PS_PER_S, Cluster, EngineSpec
from ..router_constants import RouterConstants
from ..time_limits import check_spans
from . import layout as L
from .arena import Words
from .belief import MOST_OUTPUT


def believed_cluster(block: Words, constants: RouterConstants) -> Cluster:
    """What a router makes of its cluster when it looks ahead.

    Block size, running limit, step budget, links and the number of instances are the block's: a router is told them.
    All step times and KV capacities are the router's constants; A is a line, with their slope.

    Args:
        block: state block of a simulator or of a router.
        constants: the router's constants.

    Raises:
        ValueError: with these constants a request could take longer than times may last.
    """
    prefills, decodes = int(block[L.H_PREFILLS]), int(block[L.H_DECODES])
    engines = tuple(_engine(block, constants, i) for i in range(prefills + decodes))
    aggregated = bool(block[L.H_MIXED])
    latency = None if aggregated else _words(int(block[L.H_T_LATENCY]), prefills * decodes).reshape(prefills, decodes)
    cluster = Cluster(
        prefill=engines[:prefills],
        decode=() if aggregated else engines[prefills:],
        mixed=engines if aggregated else (),
        first_token="prefill" if block[L.H_FIRST_PREFILL] else "decode",
        poll_interval=int(block[L.H_POLL]),
        latency=latency,
        name="believed",
    )
    longest = max(engine.num_blocks for engine in engines) * engines[0].block_size
    check_spans(cluster, np.array([MAX_TIME_PS]), np.array([longest]), np.array([MOST_OUTPUT]))
    return cluster


def _engine(block: Words, constants: RouterConstants, i: int) -> EngineSpec:
    row = int(block[L.H_O_ENGINES]) + i * L.ENGINE_WORDS
    spec = _words(int(block[row + L.E_SPEC]), L.SPEC_WORDS)
    block_size, sequences = int(block[L.H_BLOCK]), int(spec[L.P_SEQS])

    def ps(name: str, least: int = 0) -> int:
        return max(least, round(float(getattr(constants, name)[i]) * PS_PER_S))

    return EngineSpec(
        base_decode=ps("base_decode", 1),
        base_prefill=ps("base_prefill", 1),
        base_mixed=ps("base_mixed", 1),
        batch=np.rint(constants.per_sequence[i] * PS_PER_S * np.arange(sequences + 1)).astype(np.int64),
        per_context=ps("per_context"),
        per_token=ps("per_token"),
        per_token_sq=ps("per_token_sq"),
        block_size=block_size,
        num_blocks=max(1, int(constants.kv_capacity[i]) // block_size),
        max_num_seqs=sequences,
        max_num_batched_tokens=int(spec[L.P_BUDGET]),
        max_model_len=MAX_TOKENS,
        egress_per_block=int(spec[L.P_EGRESS]),
        latency=1,
        lease=int(spec[L.P_LEASE]),
        name=f"instance {i}",
    )


def _words(address: int, count: int) -> npt.NDArray[np.int64]:
    """A copy of so many words of memory."""
    return np.array((ctypes.c_int64 * count).from_address(address), np.int64)
