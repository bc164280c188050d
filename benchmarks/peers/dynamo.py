"""Dynamo's offline replay: the files that it reads, and what it tells of each request.

Seen in ai-dynamo 1.6.1, whose replay is driven by `dynamo.replay.run_trace_replay`: a trace in Mooncake's format, and
an engine configuration for each of the two pools. Step times come from tables in an NPZ file (`dynamo_profile`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S, Cluster, EngineSpec
from ...envs.trace import Trace
from .delays import Delays

PS_PER_MS = 1_000_000_000
MS_PER_S = 1_000

TRACE_BLOCK = 512
"""Tokens that one id of a prompt block stands for: Mooncake's own. The engines' blocks are another thing; smaller ones
here give the same times and only cost Dynamo more to read."""


def step_tables(engine: EngineSpec) -> bytes:
    """Our step times as the tables that Dynamo interpolates, an NPZ file.

    A prefill step is looked up by the sum of its tokens, a decode step by K and by the mean context ⌊K / B⌋ (two axes,
    linear between and beyond the points). Prefill linear in tokens is therefore exact; of a decode step
    base + b·B + C·K, B comes out as K / ⌊K / B⌋, too much by at most one part in the mean context.

    Raises:
        ValueError: step times of another form: such tables cannot hold them.
    """
    if engine.per_token_sq:
        raise ValueError(f"{engine.name}: per_prefill_token_sq_ns is not 0; Dynamo's prefill steps have no such term")
    per_sequence = int(engine.batch[1])
    if (engine.batch != per_sequence * np.arange(engine.max_num_seqs + 1)).any():
        raise ValueError(f"{engine.name}: batch_us is given; Dynamo's tables can only be given per_sequence_us")
    tokens = np.array([1.0, engine.max_num_batched_tokens])
    active = np.array([0.0, engine.num_blocks * engine.block_size])
    # One entry per token, so that nothing is interpolated between contexts.
    context = np.arange(1.0, engine.max_model_len + 1)
    decode = engine.base_decode + active[:, None] * (per_sequence / context + engine.per_context)
    file = io.BytesIO()
    np.savez(
        file,
        prefill_isl=tokens,
        prefill_ttft_ms=(engine.base_prefill + engine.per_token * tokens) / PS_PER_MS,
        decode_active_kv_tokens=active,
        decode_context_length=context,
        decode_itl=decode / PS_PER_MS,
    )
    return file.getvalue()


def engine_config(engine: EngineSpec, role: str, tables: str, kv_bytes_per_token: int) -> dict[str, Any]:
    """The configuration of one of Dynamo's engines.

    Args:
        engine: ours.
        role: prefill or decode.
        tables: path of the step tables.
        kv_bytes_per_token: of the profile; with the egress it gives the bandwidth.
    """
    block_bytes = engine.block_size * kv_bytes_per_token
    return {
        "engine": {
            "worker_type": role,
            "num_gpu_blocks": engine.num_blocks,
            "block_size": engine.block_size,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "enable_prefix_caching": False,
            "kv_transfer_bytes_per_token": kv_bytes_per_token,
            "kv_transfer_bandwidth": block_bytes / (engine.egress_per_block / PS_PER_S) / 1e9,
            "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": tables}},
        }
    }


def replay_options(cluster: Cluster, tables: str, kv_bytes_per_token: int) -> dict[str, Any]:
    """The keywords of `run_trace_replay` for a cluster of ours whose instances of a role are alike."""
    return {
        "prefill_engine_args": engine_config(cluster.prefill[0], "prefill", tables, kv_bytes_per_token),
        "decode_engine_args": engine_config(cluster.decode[0], "decode", tables, kv_bytes_per_token),
        "num_prefill_workers": len(cluster.prefill),
        "num_decode_workers": len(cluster.decode),
        "trace_block_size": TRACE_BLOCK,
        "router_mode": "round_robin",
        "replay_mode": "offline",
    }


def trace_lines(trace: Trace, requests: int | None = None) -> str:
    """A trace in Mooncake's format, arrivals in ms with all their digits; no two prompts share a block.

    Args:
        trace: the requests.
        requests: how many of the first ones; None: all.
    """
    lines, next_id = [], 0
    for arrival, prompt, output in zip(
        trace.arrival[:requests].tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=False
    ):
        blocks = -(-prompt // TRACE_BLOCK)
        row = {
            "timestamp": arrival / PS_PER_MS,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": list(range(next_id, next_id + blocks)),
        }
        next_id += blocks
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


@dataclass(frozen=True, eq=False)
class Replay:
    """What Dynamo tells of the requests, in the order of the trace.

    Attributes:
        delays: TTFT and TPOT.
        prefill: (N,) index of the prefill instance.
        decode: (N,) index of the decode instance.
        preemptions: times that a request was admitted again.
    """

    delays: Delays
    prefill: npt.NDArray[np.int64]
    decode: npt.NDArray[np.int64]
    preemptions: int


COLUMNS = (
    "arrival_time_ms",
    "input_length",
    "output_length",
    "first_token_ms",
    "last_token_ms",
    "prefill_worker_idx",
    "decode_worker_idx",
    "readmission_count",
)
"""What is read of a request."""


def read_requests(rows: Sequence[Mapping[str, Any]], trace: Trace) -> Replay:
    """Dynamo's records of single requests, which come in any order.

    Raises:
        RuntimeError: requests are missing, were not served whole, or are not those of the trace.
    """
    if len(rows) != len(trace):
        raise RuntimeError(f"Dynamo tells of {len(rows)} requests; the trace has {len(trace)}")
    for row in rows:
        if lacking := [name for name in COLUMNS if row.get(name) is None]:
            raise RuntimeError(f"Dynamo tells no {lacking[0]} of a request; its version may be another")
    table = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    arrival, prompt, output, first, last, prefill, decode, again = table.T
    ours = np.lexsort((trace.output, trace.prompt, trace.arrival))
    late = np.abs(arrival - trace.arrival[ours] / PS_PER_MS) > 1e-6
    if late.any() or (prompt != trace.prompt[ours]).any() or (output != trace.output[ours]).any():
        raise RuntimeError("Dynamo's requests are not those of the trace: it changed arrivals or lengths")
    back = np.argsort(ours)
    delays = Delays.of((first - arrival) / MS_PER_S, (last - first) / MS_PER_S, output)
    return Replay(
        delays.at(back),
        prefill[back].astype(np.int64),
        decode[back].astype(np.int64),
        int(again.sum()),
    )
