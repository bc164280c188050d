"""Building the state block: a cluster, a trace and a router's predictor in the form that the compiled core runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cluster import Cluster, EngineSpec
from ..trace import Trace
from . import layout as L
from .arena import Allocate, Words, aligned_words
from .entries import write_requests

LEARNS = {
    "": L.LEARN_NONE,
    "bucket": L.LEARN_BUCKET,
    "prompt-bucket": L.LEARN_PROMPT_BUCKET,
    "prompt-regression": L.LEARN_PROMPT_REGRESSION,
}
"""Predictors that learn in the run, by the name that `Predictor.learns` gives."""

_ACTIONS = {"kill": 0, "drain": 1, "return": 2}


def _padded(count: int) -> int:
    return -(-max(count, 1) // L.LANES) * L.LANES


@dataclass(frozen=True)
class Tables:
    """The constant tables of a cluster, which state blocks point into.

    Attributes:
        specs: one row of SPEC_WORDS per engine.
        batches: A of every engine, back to back.
        latency: (P, D) ps.
        events: rows of (time, instance, action).
    """

    specs: Words
    batches: Words
    latency: Words
    events: Words

    @staticmethod
    def of(cluster: Cluster) -> Tables:
        """The tables of a cluster: one copy for all state blocks."""
        return _tables(cluster)


@lru_cache(maxsize=8)
def _tables(cluster: Cluster) -> Tables:
    engines = cluster.instances
    batches = np.concatenate([np.ascontiguousarray(e.batch, np.int64) for e in engines])
    specs = aligned_words(L.SPEC_WORDS * len(engines)).reshape(-1, L.SPEC_WORDS)
    at = batches.ctypes.data
    for row, engine in zip(specs, engines, strict=True):
        _fill_spec(row, engine, at)
        at += 8 * len(engine.batch)
    latency = np.zeros((1, 1), np.int64) if cluster.mixed else cluster.latency_matrix()
    events = np.array([(e.time, e.instance, _ACTIONS[e.action]) for e in cluster.events], np.int64).reshape(-1, 3)
    return Tables(specs, batches, np.ascontiguousarray(latency), np.ascontiguousarray(events))


def _fill_spec(row: Words, engine: EngineSpec, batch_address: int) -> None:
    row[L.P_BASE_DECODE] = engine.base_decode
    row[L.P_BASE_PREFILL] = engine.base_prefill
    row[L.P_BASE_MIXED] = engine.base_mixed
    row[L.P_CONTEXT] = engine.per_context
    row[L.P_TOKEN] = engine.per_token
    row[L.P_SQUARE] = engine.per_token_sq
    row[L.P_BLOCKS] = engine.num_blocks
    row[L.P_SEQS] = engine.max_num_seqs
    row[L.P_BUDGET] = engine.max_num_batched_tokens
    row[L.P_EGRESS] = engine.egress_per_block
    row[L.P_LEASE] = engine.lease
    row[L.P_BATCH] = batch_address


def new_block(
    cluster: Cluster, tables: Tables, capacity: int, allocate: Allocate = aligned_words, *, with_rows: bool = False
) -> Words:
    """An empty cluster at time 0, with room for `capacity` requests in flight and no trace.

    `with_rows`: the records of requests in flight lie behind their slots.
    """
    prefills, decodes = len(cluster.prefill), len(cluster.decode) or len(cluster.mixed)
    engines = cluster.instances
    decoders = engines[prefills:]
    block_size = engines[0].block_size
    routed = prefills or decodes
    pre_groups, dec_groups = _padded(routed) // L.LANES, _padded(decodes) // L.LANES
    leaves = 1 << (len(engines) - 1).bit_length()
    phase_stride = _padded(block_size)
    strips = -(-max(e.max_num_seqs for e in decoders) // L.STRIP)
    of_batches, of_crossings = 2 * L.STRIP * decodes, L.STRIP * decodes * cluster.routers
    ledger_stride = L.PRE_GROUP * pre_groups + L.DEC_GROUP * dec_groups
    sizes = {
        L.H_O_WAKE: 4 * leaves,
        L.H_O_LEAP: L.LEAP_GROUP * dec_groups,
        L.H_O_LEDGER: ledger_stride * cluster.routers,
        L.H_O_ENGINES: L.ENGINE_WORDS * len(engines),
        L.H_O_PHASES: phase_stride * decodes,
        L.H_O_LEARNER: _padded(L.LEARNER_WORDS * cluster.routers),
        L.H_O_POLICY: L.POLICY_WORDS * cluster.routers,
        L.H_O_BATCH: strips * (of_batches + of_crossings),
    }
    offsets = {}
    at = L.HEADER_WORDS
    for field, size in sizes.items():
        offsets[field] = at
        at += _padded(size)
    offsets[L.H_O_CROSS] = offsets[L.H_O_BATCH] + of_batches
    slot_words = L.SLOT_WORDS + L.ROW_WORDS * with_rows
    block = allocate(at + capacity * slot_words)
    block[list(offsets)] = list(offsets.values())
    header = {
        L.H_O_SLOTS: at,
        L.H_PREFILLS: prefills,
        L.H_DECODES: decodes,
        L.H_ENGINES: len(engines),
        L.H_ROUTED: routed,
        L.H_WAKE_PAD: leaves,
        L.H_PRE_GROUPS: pre_groups,
        L.H_DEC_GROUPS: dec_groups,
        L.H_LEDGER_DECODE: L.PRE_GROUP * pre_groups,
        L.H_SLOT_BYTES: 8 * slot_words,
        L.H_ROWS: int(with_rows),
        L.H_PHASE_STRIDE: phase_stride,
        L.H_STRIP_STRIDE: of_batches + of_crossings,
        L.H_LEDGER_STRIDE: ledger_stride,
        L.H_ROUTERS: cluster.routers,
        L.H_MIXED: int(cluster.aggregated),
        L.H_FIRST_PREFILL: int(cluster.first_token == "prefill" and not cluster.aggregated),
        L.H_REROUTE: int(cluster.on_kill == "reroute"),
        L.H_STRICT: int(cluster.on_kill == "reroute" and len(cluster.events) > 0),
        L.H_POLL: cluster.poll_interval,
        L.H_BLOCK: block_size,
        L.H_BLOCK_SHIFT: block_size.bit_length() - 1 if block_size & (block_size - 1) == 0 else -1,
        L.H_OPEN_PREFILLS: routed,
        L.H_OPEN_DECODES: decodes,
        L.H_PENDING: -1,
        L.H_LOST: -1,
        L.H_FREE_SLOT: -1,
        L.H_CAPACITY: capacity,
        L.H_WORDS: len(block),
        L.H_ARRIVAL: L.FOREVER,
        L.H_EVENTS: len(tables.events),
        L.H_EVENT_TIME: int(tables.events[0, 0]) if len(tables.events) else L.FOREVER,
        L.H_T_EVENTS: tables.events.ctypes.data,
        L.H_T_LATENCY: tables.latency.ctypes.data,
    }
    block[list(header)] = list(header.values())
    block[L.H_LAST : L.H_LAST + L.MAX_ROUTERS] = -1
    _reset_rows(block, offsets, routed, decodes)
    rows = block[offsets[L.H_O_ENGINES] :][: L.ENGINE_WORDS * len(engines)].reshape(-1, L.ENGINE_WORDS)
    for i, row in enumerate(rows):
        row[L.E_SPEC] = tables.specs[i].ctypes.data
        row[L.E_STATE] = L.STATE_UP
        row[L.E_FREE] = engines[i].num_blocks
        row[L.E_POLLED] = -1
        row[L.E_HOLD_TIME] = row[L.E_NEXT_FINISH] = L.FOREVER
        for head in (L.E_QUEUE, L.E_CHUNKS, L.E_RELEASE, L.E_HOLD):
            row[head] = row[head + 1] = -1
    return block


def _reset_rows(block: Words, offsets: dict[int, int], routed: int, decodes: int) -> None:
    leaves = int(block[L.H_WAKE_PAD])
    tree = block[offsets[L.H_O_WAKE] :][: 4 * leaves].reshape(2, -1)
    tree[0] = L.FOREVER
    tree[1, leaves:] = np.arange(leaves)
    leaps = block[offsets[L.H_O_LEAP] : offsets[L.H_O_LEDGER]].reshape(-1, L.LEAP_GROUP // L.LANES, L.LANES)
    leaps[:, L.LEAP_FIRST // L.LANES] = 1 << 62
    closed = np.array(np.inf).view(np.int64)
    stride, decode_at = int(block[L.H_LEDGER_STRIDE]), int(block[L.H_LEDGER_DECODE])
    for router in range(int(block[L.H_ROUTERS])):
        ledger = block[offsets[L.H_O_LEDGER] + router * stride :][:stride]
        prefill = ledger[:decode_at].reshape(-1, L.PRE_GROUP // L.LANES, L.LANES)
        decode = ledger[decode_at:].reshape(-1, L.DEC_GROUP // L.LANES, L.LANES)
        decode[:, L.DEC_CROSS_MIN // L.LANES] = L.FOREVER
        for rows, field, count in ((prefill, L.PRE_OPEN, routed), (decode, L.DEC_OPEN, decodes)):
            for i in range(count, rows.shape[0] * L.LANES):  # the padding of the last group
                rows[i // L.LANES, field // L.LANES, i % L.LANES] = closed
    of_batches = offsets[L.H_O_CROSS] - offsets[L.H_O_BATCH]
    strips = block[offsets[L.H_O_BATCH] : int(block[L.H_O_SLOTS])].reshape(-1, int(block[L.H_STRIP_STRIDE]))
    strips[:, :of_batches].reshape(len(strips), -1, 2, L.STRIP)[:, :, 0] = L.FOREVER
    strips[:, of_batches:] = L.FOREVER


TRACE_ROW = np.dtype(
    [(name, "i8") for name in ("arrival", "ttft_target", "tpot_target")]
    + [(name, "i4") for name in ("prompt", "output", "predicted", "who")]
)
"""A request as the core reads it (T_…)."""


def load_trace(
    block: Words,
    trace: Trace,
    routers: npt.NDArray[np.int64] | None,
    predicted: npt.NDArray[np.int32] | None,
    learns: str,
    rows: npt.NDArray[Any],
) -> None:
    """Gives a state block the requests of a trace; they are copied to `rows` (TRACE_ROW), which the caller keeps.

    Without routers all are the first one's.
    """
    columns = trace.arrival, trace.ttft_target, trace.tpot_target, trace.prompt, trace.output, trace.slo
    given = [0 if column is None else column.ctypes.data for column in (*columns, predicted, routers)]
    write_requests(rows.ctypes.data, len(trace), *given)
    show_trace(block, trace.arrival, learns, rows)


def show_trace(block: Words, arrival: npt.NDArray[np.int64], learns: str, rows: npt.NDArray[Any]) -> None:
    """Gives a state block the requests in `rows` (TRACE_ROW), which the caller keeps; `arrival`: theirs."""
    words = block.data
    words[L.H_REQUESTS] = len(arrival)
    words[L.H_NEXT] = 0
    words[L.H_TRACE] = rows.ctypes.data
    words[L.H_LEARNS] = LEARNS[learns]
    first = arrival.item(0) if len(arrival) else L.FOREVER
    words[L.H_ARRIVAL] = first
    if not words[L.H_STRICT]:
        words[L.H_VISIBLE] = first // words[L.H_POLL] * words[L.H_POLL]


def grown(block: Words, allocate: Allocate = aligned_words) -> Words:
    """A copy of the block with twice the slots.

    Raises:
        MemoryError: more requests in flight than the core can number.
    """
    capacity = 2 * int(block[L.H_CAPACITY])
    if capacity > L.KEY_MASK:
        raise MemoryError(f"more than {L.KEY_MASK:,} requests in flight; is the cluster far beyond saturation?")
    bigger = allocate(int(block[L.H_O_SLOTS]) + capacity * int(block[L.H_SLOT_BYTES]) // 8)
    bigger[: len(block)] = block
    bigger[L.H_CAPACITY] = capacity
    bigger[L.H_WORDS] = len(bigger)
    return bigger


def check_pair(block: Words, prefill: int, decode: int) -> None:
    """Refuses a pair of instances that the pending request may not be sent to.

    Raises:
        ValueError: an index is no integer, out of range or of an instance that may not be assigned, or two different
            mixed instances.
    """
    _check_open(block, "prefill", prefill, int(block[L.H_ROUTED]), 0)
    _check_open(block, "decode", decode, int(block[L.H_DECODES]), int(block[L.H_PREFILLS]))
    if prefill != decode and block[L.H_MIXED]:
        raise ValueError(f"prefill {prefill} and decode {decode} differ; a mixed instance serves both")


def _check_open(block: Words, pool: str, index: int, count: int, first: int) -> None:
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise ValueError(f"{pool} instance is {index!r}; it must be an integer")
    if not 0 <= index < count:
        raise ValueError(f"{pool} instance {index} does not exist; allowed are 0 to {count - 1}")
    row = block[int(block[L.H_O_ENGINES]) + (first + index) * L.ENGINE_WORDS :][: L.ENGINE_WORDS]
    if row[L.E_STATE] != L.STATE_UP:
        raise ValueError(f"{pool} instance {index} is down or draining; it may not be assigned")
