"""Network: the costs of `linear` plus what hidden units add that all instances of a pool share.

The formula is in policies/network_shape.py. What all instances share of the first layer is worked out once per pool.
The units lie in blocks of sixteen float32; of each sum the terms are added one after the other, in the order of the
inputs. So the costs are the same bits on every machine, but for what the C library makes of log2. They are left in the
ledger's rows (`…_COST`) where there is a choice.
"""

from __future__ import annotations

import math

import numpy as np

from ...envs.simulator import feature_rows as R
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import ld, ld32, ldc, ldcf, ldf, scratch, st32, stf, store_clipped
from ...envs.simulator.slots import grouped, slot_at
from .. import network_shape as shape
from .scores import nth_open, open_count
from .weighing import (
    DECODE_CELLS,
    DECODE_WORDS,
    MIXED_CELLS,
    MIXED_WORDS,
    PREFILL_CELLS,
    PREFILL_WORDS,
    least_decode,
    least_prefill,
    weigh_decode,
    weigh_mixed,
    weigh_prefill,
)

LANES = V.SINGLES
"""Units of a block."""

HEADER = ("first", "second")
"""First numbers of the parameter vector: blocks of the first layer, blocks of the second (0: there is none)."""

STAGE = ("dense", "inputs", "cells", "contexts", "summaries", "columns")
"""From HEADER_WORDS on, STAGE_WORDS of each stage: the word at which its dense part begins, how many columns of an
instance the units read, the cells that these take, how many numbers all instances share, of how many columns a summary
is among them, and which columns these are.

After that come the weights of the skip, as `linear` has them (`weighing.py`), and after these the dense parts: float32,
in blocks of LANES units, what is left over being 0. A dense part has of each block of the first layer the biases, then
the weights of each shared number, then those of each column; of each block of the second layer the biases, then the
weights of each unit of the first; then the weights of the last layer's units in the cost.
"""

HEADER_WORDS, STAGE_WORDS = 8, 16
SKIP_WORD = HEADER_WORDS + len(shape.STAGES) * STAGE_WORDS
SKIP_WORDS = PREFILL_WORDS + DECODE_WORDS + MIXED_WORDS
CELLS = (PREFILL_CELLS, DECODE_CELLS, MIXED_CELLS)

_PREFILL, _DECODE, _MIXED = (8 * (HEADER_WORDS + stage * STAGE_WORDS) for stage in range(len(shape.STAGES)))
_PREFILL_SKIP = 8 * SKIP_WORD
_DECODE_SKIP = _PREFILL_SKIP + 8 * PREFILL_WORDS
_MIXED_SKIP = _DECODE_SKIP + 8 * DECODE_WORDS

_CELL = 4
_BLOCK = LANES * _CELL
_CLIP, _LEAK, _NOTHING = np.float32(shape.CLIP), np.float32(shape.LEAK), np.float32(0.0)
_LOG_SCALE = shape.LOG_SCALE

_CONTEXT_CELLS = LANES * -(-max(shape.contexts(stage) for stage in shape.STAGES) // LANES)
_SHARED_CELLS = _CONTEXT_CELLS + 3 * max(CELLS)
"""Cells of what the instances share, in the scratch memory: that, then mean, least and greatest of all columns."""


@rare
def network(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool."""
    s = slot_at(S, ld(S, L.H_PENDING))
    rows, n = ledger.decode_rows(S, router), ldc(S, L.H_DECODES)
    count = open_count(rows, L.DEC_GROUP, L.DEC_OPEN, n)
    shared = _SHARED_CELLS + 2 * LANES * int(ldcf(parameters, 0))
    if ldc(S, L.H_MIXED) != 0:
        if count == 1:
            m = nth_open(rows, L.DEC_GROUP, L.DEC_OPEN, n, 0)
            return m, m, 1.0
        memory = scratch((shared + count * MIXED_CELLS) >> 1)
        inputs = memory + shared * _CELL
        weigh_mixed(S, router, s, parameters + _MIXED_SKIP, state, inputs)
        add_units(S, router, s, parameters, _MIXED, memory, inputs, count, rows, L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST)
        m = least_decode(S, router)
        return m, m, 1.0
    if count == 1:
        d = nth_open(rows, L.DEC_GROUP, L.DEC_OPEN, n, 0)
    else:
        memory = scratch((shared + count * DECODE_CELLS) >> 1)
        inputs = memory + shared * _CELL
        weigh_decode(S, router, s, parameters + _DECODE_SKIP, state, inputs)
        add_units(S, router, s, parameters, _DECODE, memory, inputs, count, rows, L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST)
        d = least_decode(S, router)
    rows, n = ledger.prefill_rows(S, router), ldc(S, L.H_PREFILLS)
    count = open_count(rows, L.PRE_GROUP, L.PRE_OPEN, n)
    if count == 1:
        return nth_open(rows, L.PRE_GROUP, L.PRE_OPEN, n, 0), d, 1.0
    memory = scratch((shared + count * PREFILL_CELLS) >> 1)
    inputs = memory + shared * _CELL
    weigh_prefill(S, router, s, parameters + _PREFILL_SKIP, state, inputs)
    add_units(S, router, s, parameters, _PREFILL, memory, inputs, count, rows, L.PRE_GROUP, L.PRE_OPEN, L.PRE_COST)
    return least_prefill(S, router), d, 1.0


@rare
def add_units(
    S: int,
    router: int,
    s: int,
    parameters: int,
    stage: int,
    memory: int,
    inputs: int,
    count: int,
    rows: int,
    group: int,
    mark: int,
    field: int,
) -> None:
    """Adds to the costs in a pool's rows what the hidden units make of the inputs of `count` instances."""
    about = parameters + stage
    dense, columns, cells = parameters + 8 * int(ldcf(about, 0)), int(ldcf(about, 1)), int(ldcf(about, 2))
    contexts, first = int(ldcf(about, 3)), int(ldcf(parameters, 0))
    share(S, router, s, about, memory, inputs, count, cells)
    base = memory + _SHARED_CELLS * _CELL
    stride = (1 + contexts + columns) * _BLOCK
    for block in range(first):
        total = V.load_singles(dense + block * stride, 0)
        for k in range(contexts):
            total = total + V.load_singles(dense + block * stride, (1 + k) * LANES) * V.load_spread(memory, k)
        V.store_singles(base, block * LANES, total)
    i = 0
    for _ in range(count):
        while ldf(grouped(rows, group, i), mark) != 0.0:
            i += 1
        own = grouped(rows, group, i)
        i += 1
        added = units(parameters, dense, base, inputs, stride, (1 + contexts) * _BLOCK, columns)
        stf(own, field, ldf(own, field) + added)
        inputs += cells * _CELL


@inline
def share(S: int, router: int, s: int, about: int, memory: int, inputs: int, count: int, cells: int) -> None:
    """Writes what the instances share: the request, their number, and mean, least and greatest of some columns."""
    store_clipped(memory, R.request(S, router, s), R.REQUEST_SCALES, _CLIP)
    store_clipped(memory + R.REQUEST_COLUMNS * _CELL, (math.log2(float(count)),), (_LOG_SCALE,), _CLIP)
    summary = memory + _CONTEXT_CELLS * _CELL
    for k in range(0, cells, LANES):
        at = inputs
        total = V.load_singles(at, k)
        low, high = total, total
        for _ in range(1, count):
            at += cells * _CELL
            x = V.load_singles(at, k)
            total, low, high = total + x, V.lesser(x, low), V.greater(x, high)
        V.store_singles(summary, k, total / np.float32(count))
        V.store_singles(summary, cells + k, low)
        V.store_singles(summary, 2 * cells + k, high)
    at = memory + (R.REQUEST_COLUMNS + 1) * _CELL
    for part in range(3):
        for k in range(int(ldcf(about, 4))):
            st32(at, 0, ld32(summary, part * cells + int(ldcf(about, 5 + k))))
            at += _CELL


@inline
def units(parameters: int, dense: int, base: int, row: int, stride: int, skipped: int, columns: int) -> float:
    """What the hidden units add to the cost of the instance with these inputs."""
    first, second = int(ldcf(parameters, 0)), int(ldcf(parameters, 1))
    out = dense + first * stride
    below = base + first * _BLOCK
    cost = V.spread_single(_NOTHING)
    for block in range(first):
        weights = dense + block * stride + skipped
        total = V.load_singles(base, block * LANES)
        for k in range(columns):
            total = total + V.load_singles(weights, k * LANES) * V.load_spread(row, k)
        total = V.greater(total, total * _LEAK)
        if second == 0:
            cost = cost + total * V.load_singles(out, block * LANES)
        else:
            V.store_singles(below, block * LANES, total)
    last = out + second * (1 + first * LANES) * _BLOCK
    for block in range(second):
        total = V.load_singles(out, 0)
        for k in range(first * LANES):
            total = total + V.load_singles(out, (1 + k) * LANES) * V.load_spread(below, k)
        cost = cost + V.greater(total, total * _LEAK) * V.load_singles(last, block * LANES)
        out += (1 + first * LANES) * _BLOCK
    return np.float64(V.sum_of(cost))
