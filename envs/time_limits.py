"""Limits of time: what one step, one transfer or one request may take so that no sum leaves int64.

What is left of int64 after the last arrival is shared out: nothing that is planned lies more than a quarter of it
ahead, and a run ends where one such span is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .cluster import PS_PER_S, Cluster, EngineSpec

Lengths = npt.NDArray[np.integer]

END_OF_TIME = (1 << 63) - 1


def longest_span(cluster: Cluster, arrival: npt.NDArray[np.int64]) -> int:
    """Longest that anything may take, ps: 26 days, or 1.7 after a trace of 100 days.

    Args:
        cluster: its failure schedule may outlast the trace.
        arrival: (N,) ps, sorted.
    """
    last = max([int(arrival[-1]) if len(arrival) else 0] + [event.time for event in cluster.events[-1:]])
    return (END_OF_TIME - last) // 4


def last_time(cluster: Cluster, arrival: npt.NDArray[np.int64]) -> int:
    """When a run must have ended, ps."""
    return END_OF_TIME - longest_span(cluster, arrival)


def check_alone(engine: EngineSpec, prompt: Lengths, output: Lengths, limit: int = END_OF_TIME // 4) -> None:
    """Refuses an engine on which one request alone could take longer than a limit.

    Args:
        engine: the engine.
        prompt: (N,) tokens.
        output: (N,) tokens.
        limit: ps.

    Raises:
        ValueError: names the engine, the longest time and the limit.
    """
    if len(prompt):
        p, o = int(prompt.max()), int(output.max())
        step = max(engine.base_decode, engine.base_mixed) + int(engine.batch[1])
        _check(f"{engine.name}: a request of {p} prompt tokens", engine.prompt_time(p), limit)
        _check(f"{engine.name}: a request of {o} output tokens", o * (step + engine.per_context * (p + o)), limit)


def check_spans(cluster: Cluster, arrival: npt.NDArray[np.int64], prompt: Lengths, output: Lengths) -> None:
    """Refuses a cluster on which requests of these lengths could overflow a time.

    Bounds on one pass: the contexts of a batch, and the prefill tokens of a step, fill at most the KV cache and at most
    `max_num_seqs` sequences of the longest request; a chunk of n tokens that ends at e adds e² − (e − n)² ≤ 2·e·n.

    Args:
        cluster: the instances.
        arrival: (N,) ps, sorted.
        prompt: (N,) tokens.
        output: (N,) tokens.

    Raises:
        ValueError: names the engine, what could take that long, and the limit.
    """
    if not len(prompt):
        return
    limit = longest_span(cluster, arrival)
    o = int(output.max())
    longest = int(prompt.max()) + o
    for engine in set(cluster.instances):
        check_alone(engine, prompt, output, limit)
        context = min(engine.num_blocks * engine.block_size, engine.max_num_seqs * longest)
        tokens = min(engine.max_num_batched_tokens, context)
        decode = engine.base_decode + int(engine.batch.max()) + engine.per_context * context
        prefill = engine.per_token * tokens + 2 * engine.per_token_sq * longest * tokens
        base = max(engine.base_decode, engine.base_prefill, engine.base_mixed)
        _check(f"{engine.name}: a step of {engine.max_num_seqs} sequences", base + decode + prefill, limit)
        _check(f"{engine.name}: {o} steps of {engine.max_num_seqs} sequences", o * decode, limit)
    if cluster.aggregated:
        return
    latency = int(cluster.latency_matrix().max())
    for engine in set(cluster.prefill):
        blocks = engine.num_blocks
        if blocks * engine.egress_per_block + latency > limit:  # more than there are requests for?
            blocks = min(blocks, int((-(-prompt.astype(np.int64) // engine.block_size)).sum()))
        _check(f"{engine.name}: sending {blocks} KV blocks", blocks * engine.egress_per_block + latency, limit)


def egress_fits(cluster: Cluster, arrival: npt.NDArray[np.int64]) -> bool:
    """Whether every prefill instance can send all its KV blocks within the limit, whatever the requests.

    Args:
        cluster: the instances.
        arrival: (N,) ps, sorted.
    """
    if cluster.aggregated:
        return True
    longest = max(engine.num_blocks * engine.egress_per_block for engine in cluster.prefill)
    return longest + int(cluster.latency_matrix().max()) <= longest_span(cluster, arrival)


def _check(what: str, span: int, limit: int) -> None:
    if span > limit:
        raise ValueError(f"{what} could take {span // PS_PER_S} s; allowed are at most {limit // PS_PER_S} s")
