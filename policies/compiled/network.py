"""Network: the skip of `linear` plus hidden units that all instances of a pool share (policies/network_shape.py).

The costs of instances that may be assigned are left in the ledger's rows (`…_COST`), where there is a choice.

What all instances share of the first layer is worked out once per pool. The units lie in blocks of sixteen float32; of
each sum the terms are added one after the other, in the order of the inputs. So the costs are the same bits on every
machine, but for what the C library makes of log2.
"""

from __future__ import annotations

import math

import numpy as np

from ...envs import features as F
from ...envs.simulator import feature_rows as R
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.admission import decode_view, prefill_view
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import (
    dot_ratios,
    ld,
    ld32,
    ldc,
    ldcf,
    ldf,
    scratch,
    st32,
    stf,
    store_clipped,
)
from ...envs.simulator.slots import grouped, slot_at
from .. import network_shape as shape
from .linear import DECODE_WORDS, MIXED_WORDS, PREFILL_WORDS, add_profile, weigh
from .scores import nth_open, open_count, value

LANES = V.SINGLES
"""Units of a block."""

HEADER = ("first", "second", "prefill", "decode", "mixed")
"""First numbers of the parameter vector: blocks of the first layer, blocks of the second (0: there is none), and the
words at which the dense part of each stage begins. After HEADER_WORDS come the weights of the skip, as `linear` has
them.

A dense part is float32, in blocks of LANES units, what is left over being 0: of each block of the first layer the
biases, then the weights of each shared input, then those of each column of the instance; of each block of the second
layer the biases, then the weights of each unit of the first; then the weights of the last layer's units in the cost.
"""

HEADER_WORDS = 8
_PREFILL_AT = 8 * HEADER_WORDS
_DECODE_AT = _PREFILL_AT + 8 * PREFILL_WORDS
_MIXED_AT = _DECODE_AT + 8 * DECODE_WORDS
SKIP_WORDS = PREFILL_WORDS + DECODE_WORDS + MIXED_WORDS

_CELL = 4
_BLOCK = LANES * _CELL

_CLIP, _LEAK, _NOTHING = np.float32(shape.CLIP), np.float32(shape.LEAK), np.float32(0.0)
_LOG_SCALE = shape.LOG_SCALE

_PREFILL_INPUTS, _DECODE_INPUTS, _MIXED_INPUTS = (len(shape.INPUTS[stage]) for stage in shape.STAGES)
_PREFILL_CONTEXTS, _DECODE_CONTEXTS, _MIXED_CONTEXTS = (shape.contexts(stage) for stage in shape.STAGES)
_PREFILL_SUMMARY, _DECODE_SUMMARY, _MIXED_SUMMARY = (
    tuple(shape.INPUTS[stage].index(name) for name in shape.SUMMARY[stage]) for stage in shape.STAGES
)
_PREFILL_ROW, _DECODE_ROW, _MIXED_ROW = (
    LANES * (-(-inputs // LANES)) for inputs in (_PREFILL_INPUTS, _DECODE_INPUTS, _MIXED_INPUTS)
)
"""Cells of an instance's inputs, filled up to whole vectors."""

_PREFILL_FILL, _DECODE_FILL, _MIXED_FILL = (
    (0.0,) * (cells - inputs)
    for cells, inputs in (
        (_PREFILL_ROW, _PREFILL_INPUTS),
        (_DECODE_ROW, _DECODE_INPUTS),
        (_MIXED_ROW, _MIXED_INPUTS),
    )
)


def _scales(stage: str, cells: int) -> tuple[float, ...]:
    by_name = {feature.name: float(feature.scale) for feature in shape.COLUMNS[stage]}
    scales = tuple(by_name[name] for name in shape.INPUTS[stage])
    return scales + (1.0,) * (cells - len(scales))


_PREFILL_SCALES, _DECODE_SCALES, _MIXED_SCALES = (
    _scales(stage, cells) for stage, cells in zip(shape.STAGES, (_PREFILL_ROW, _DECODE_ROW, _MIXED_ROW), strict=True)
)
_PROFILE = [feature.name for feature in F.PROFILE]
_TAU_PREFILL, _TAU_DECODE, _CAPACITY, _INDEX = (
    _PROFILE.index(name) for name in ("tau_prefill", "tau_decode", "kv_capacity", "index")
)

_CONTEXT_CELLS = LANES * (-(-_MIXED_CONTEXTS // LANES))
_SUMMARY_CELLS = 3 * _MIXED_ROW
_SHARED_CELLS = _CONTEXT_CELLS + _SUMMARY_CELLS
"""Cells for what the instances of a pool share, in the scratch memory: inputs, then mean, least and greatest."""


@rare
def network(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool."""
    s = slot_at(S, ld(S, L.H_PENDING))
    if ldc(S, L.H_MIXED) != 0:
        m = best_mixed(S, router, s, parameters, state)
        return m, m, 1.0
    return best_prefill(S, router, s, parameters, state), best_decode(S, router, s, parameters, state), 1.0


@inline
def cells_for(parameters: int) -> int:
    """Cells of scratch memory beside the instances' rows: what is shared, and two layers of units."""
    return _SHARED_CELLS + 2 * LANES * int(ldcf(parameters, 0))


@inline
def best_prefill(S: int, router: int, s: int, parameters: int, state: int) -> int:
    """The prefill instance of least cost."""
    rows, n = ledger.prefill_rows(S, router), ldc(S, L.H_PREFILLS)
    count = open_count(rows, L.PRE_GROUP, L.PRE_OPEN, n)
    if count == 1:
        return nth_open(rows, L.PRE_GROUP, L.PRE_OPEN, n, 0)
    memory = scratch((cells_for(parameters) + count * _PREFILL_ROW) >> 1)
    inputs = memory + cells_for(parameters) * _CELL
    stage, weights = parameters + _PREFILL_AT, state
    weigh(S, router, s, stage, R.PREFILL_FEATURES, weights)
    prompt, ttft, age, whole = R.prompt_of(s), R.ttft_of(S, s), R.poll_age(S), ldcf(stage, 0) != 0.0
    at, profile = inputs, weights + 8 * (R.PREFILL_FEATURES - R.PROFILE_COLUMNS)
    for p in range(n):
        if value(rows, L.PRE_GROUP, L.PRE_OPEN, p) == 0:
            about = R.about(S, p)
            row = F.prefill_state(prefill_view(S, router, p), prompt, ttft, age, about)
            cost = add_profile(dot_ratios(0.0, weights, row, R.PREFILL_SCALES), profile, about, whole)
            stf(grouped(rows, L.PRE_GROUP, p), L.PRE_COST, cost)
            constants = F.profile(1.0, about)
            beside = (constants[_TAU_PREFILL], constants[_CAPACITY], constants[_INDEX])
            store_clipped(at, row + beside + _PREFILL_FILL, _PREFILL_SCALES, _CLIP)
            at += _PREFILL_ROW * _CELL
    dense = parameters + 8 * int(ldcf(parameters, 2))
    share(S, router, s, memory, inputs, count, _PREFILL_ROW, _PREFILL_SUMMARY)
    base = begin_units(dense, memory, _PREFILL_CONTEXTS, _PREFILL_INPUTS, int(ldcf(parameters, 0)))
    found, least, at = -1, np.inf, inputs
    for p in range(n):
        if value(rows, L.PRE_GROUP, L.PRE_OPEN, p) == 0:
            own = grouped(rows, L.PRE_GROUP, p)
            cost = ldf(own, L.PRE_COST) + hidden(parameters, dense, base, at, _PREFILL_CONTEXTS, _PREFILL_INPUTS)
            stf(own, L.PRE_COST, cost)
            if found < 0 or cost < least:
                found, least = p, cost
            at += _PREFILL_ROW * _CELL
    return found


@inline
def best_decode(S: int, router: int, s: int, parameters: int, state: int) -> int:
    """The decode instance of least cost."""
    rows, n = ledger.decode_rows(S, router), ldc(S, L.H_DECODES)
    count = open_count(rows, L.DEC_GROUP, L.DEC_OPEN, n)
    if count == 1:
        return nth_open(rows, L.DEC_GROUP, L.DEC_OPEN, n, 0)
    memory = scratch((cells_for(parameters) + count * _DECODE_ROW) >> 1)
    inputs = memory + cells_for(parameters) * _CELL
    stage, weights = parameters + _DECODE_AT, state
    weigh(S, router, s, stage, R.DECODE_FEATURES, weights)
    prompt, predicted, tpot, age = R.prompt_of(s), R.predicted_of(s), R.tpot_of(S, s), R.poll_age(S)
    whole, prefills = ldcf(stage, 0) != 0.0, ldc(S, L.H_PREFILLS)
    at, profile = inputs, weights + 8 * (R.DECODE_FEATURES - R.PROFILE_COLUMNS)
    for d in range(n):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, d) == 0:
            about = R.about(S, prefills + d)
            row = F.decode_state(decode_view(S, router, d), prompt, predicted, tpot, age, about)
            cost = add_profile(dot_ratios(0.0, weights, row, R.DECODE_SCALES), profile, about, whole)
            stf(grouped(rows, L.DEC_GROUP, d), L.DEC_COST, cost)
            constants = F.profile(1.0, about)
            beside = (constants[_TAU_DECODE], constants[_CAPACITY], constants[_INDEX])
            store_clipped(at, row + beside + _DECODE_FILL, _DECODE_SCALES, _CLIP)
            at += _DECODE_ROW * _CELL
    dense = parameters + 8 * int(ldcf(parameters, 3))
    share(S, router, s, memory, inputs, count, _DECODE_ROW, _DECODE_SUMMARY)
    base = begin_units(dense, memory, _DECODE_CONTEXTS, _DECODE_INPUTS, int(ldcf(parameters, 0)))
    found, least, at = -1, np.inf, inputs
    for d in range(n):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, d) == 0:
            own = grouped(rows, L.DEC_GROUP, d)
            cost = ldf(own, L.DEC_COST) + hidden(parameters, dense, base, at, _DECODE_CONTEXTS, _DECODE_INPUTS)
            stf(own, L.DEC_COST, cost)
            if found < 0 or cost < least:
                found, least = d, cost
            at += _DECODE_ROW * _CELL
    return found


@inline
def best_mixed(S: int, router: int, s: int, parameters: int, state: int) -> int:
    """The mixed instance of least cost."""
    rows, n = ledger.decode_rows(S, router), ldc(S, L.H_DECODES)
    count = open_count(rows, L.DEC_GROUP, L.DEC_OPEN, n)
    if count == 1:
        return nth_open(rows, L.DEC_GROUP, L.DEC_OPEN, n, 0)
    memory = scratch((cells_for(parameters) + count * _MIXED_ROW) >> 1)
    inputs = memory + cells_for(parameters) * _CELL
    stage, weights = parameters + _MIXED_AT, state
    weigh(S, router, s, stage, R.MIXED_FEATURES, weights)
    prompt, predicted, age, whole = R.prompt_of(s), R.predicted_of(s), R.poll_age(S), ldcf(stage, 0) != 0.0
    ttft, tpot = R.ttft_of(S, s), R.tpot_of(S, s)
    at, profile = inputs, weights + 8 * (R.MIXED_FEATURES - R.PROFILE_COLUMNS)
    for m in range(n):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, m) == 0:
            first, view, about = prefill_view(S, router, m), decode_view(S, router, m), R.about(S, m)
            row = F.mixed_state(first, view, prompt, predicted, ttft, tpot, age, about)
            cost = add_profile(dot_ratios(0.0, weights, row, R.MIXED_SCALES), profile, about, whole)
            stf(grouped(rows, L.DEC_GROUP, m), L.DEC_COST, cost)
            constants = F.profile(1.0, about)
            beside = (constants[_TAU_PREFILL], constants[_TAU_DECODE], constants[_CAPACITY], constants[_INDEX])
            store_clipped(at, row + beside + _MIXED_FILL, _MIXED_SCALES, _CLIP)
            at += _MIXED_ROW * _CELL
    dense = parameters + 8 * int(ldcf(parameters, 4))
    share(S, router, s, memory, inputs, count, _MIXED_ROW, _MIXED_SUMMARY)
    base = begin_units(dense, memory, _MIXED_CONTEXTS, _MIXED_INPUTS, int(ldcf(parameters, 0)))
    found, least, at = -1, np.inf, inputs
    for m in range(n):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, m) == 0:
            own = grouped(rows, L.DEC_GROUP, m)
            cost = ldf(own, L.DEC_COST) + hidden(parameters, dense, base, at, _MIXED_CONTEXTS, _MIXED_INPUTS)
            stf(own, L.DEC_COST, cost)
            if found < 0 or cost < least:
                found, least = m, cost
            at += _MIXED_ROW * _CELL
    return found


@inline
def share(
    S: int, router: int, s: int, memory: int, inputs: int, count: int, cells: int, columns: tuple[int, ...]
) -> None:
    """Writes what `count` instances share to `memory`: the request, their number, and a summary of some columns.

    `inputs` holds the instances' inputs, `cells` each.
    """
    store_clipped(memory, R.request(S, router, s), R.REQUEST_SCALES, _CLIP)
    size = (math.log2(float(count)),)
    store_clipped(memory + R.REQUEST_COLUMNS * _CELL, size, (_LOG_SCALE,), _CLIP)
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
        for column in columns:
            st32(at, 0, ld32(summary, part * cells + column))
            at += _CELL


@inline
def begin_units(dense: int, memory: int, contexts: int, columns: int, blocks: int) -> int:
    """Sums of the first layer over what is shared; returns where they are."""
    base = memory + _SHARED_CELLS * _CELL
    for block in range(blocks):
        total = V.load_singles(dense, 0)
        for k in range(contexts):
            total = total + V.load_singles(dense, (1 + k) * LANES) * V.load_spread(memory, k)
        V.store_singles(base, block * LANES, total)
        dense += (1 + contexts + columns) * _BLOCK
    return base


@inline
def hidden(parameters: int, dense: int, base: int, row: int, contexts: int, columns: int) -> float:
    """What the hidden units add to the cost of the instance with these inputs."""
    first, second = int(ldcf(parameters, 0)), int(ldcf(parameters, 1))
    out = dense + first * (1 + contexts + columns) * _BLOCK
    units = base + first * _BLOCK
    cost = V.spread_single(_NOTHING)
    for block in range(first):
        weights = dense + (1 + contexts) * _BLOCK
        total = V.load_singles(base, block * LANES)
        for k in range(columns):
            total = total + V.load_singles(weights, k * LANES) * V.load_spread(row, k)
        total = V.greater(total, total * _LEAK)
        if second == 0:
            cost = cost + total * V.load_singles(out, block * LANES)
        else:
            V.store_singles(units, block * LANES, total)
        dense += (1 + contexts + columns) * _BLOCK
    if second != 0:
        last = out + second * (1 + first * LANES) * _BLOCK
        for block in range(second):
            total = V.load_singles(out, 0)
            for k in range(first * LANES):
                total = total + V.load_singles(out, (1 + k) * LANES) * V.load_spread(units, k)
            cost = cost + V.greater(total, total * _LEAK) * V.load_singles(last, block * LANES)
            out += (1 + first * LANES) * _BLOCK
    return np.float64(V.sum_of(cost))
