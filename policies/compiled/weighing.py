"""Weighed features: the costs of `linear`, which `network` begins with, left in the ledger's rows (`…_COST`).

    cost(i) = Σ over columns k of (w(k) + Σ over request features r of w(r, k) · x(r)) · x(i, k)

The bracket is the same for all instances of a pool: it is worked out once per decision. Weights that are 0 are left out
where whole groups of them are: that changes no bit of the sum.

Where `out` is an address and not 0, each function also writes what the hidden units of `network` read of every instance
that may be assigned: the columns INPUTS (policies/network_shape.py), float32, clipped, filled up to whole vectors.
"""

from __future__ import annotations

import numpy as np

from ...envs import features as F
from ...envs.simulator import feature_rows as R
from ...envs.simulator import lanes as V
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.admission import decode_view, prefill_view
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import dot_ratios, ldc, ldcf, ldf, stf, store_clipped
from ...envs.simulator.slots import grouped
from .. import network_shape as shape
from .scores import value

STAGES = shape.STAGES
"""Order in the parameter vector. Of each stage: whether a column of the profile but the index has a weight, whether a
product with each request feature has one, the weights of the columns, and those of their products with each request
feature. Behind all of them are words that are read with the last vector, and not used."""

BEHIND = V.WIDTH - 1
"""How many."""

_FLAGS = 1 + R.REQUEST_COLUMNS
PREFILL_WORDS, DECODE_WORDS, MIXED_WORDS = (
    _FLAGS * (1 + columns) for columns in (R.PREFILL_FEATURES, R.DECODE_FEATURES, R.MIXED_FEATURES)
)
"""Words of each stage."""

_PROFILE = [feature.name for feature in F.PROFILE]
_TAU_PREFILL, _TAU_DECODE, _CAPACITY, _INDEX = (
    _PROFILE.index(name) for name in ("tau_prefill", "tau_decode", "kv_capacity", "index")
)
_PROFILE_SCALES = R.PREFILL_SCALES[-R.PROFILE_COLUMNS :]

_CLIP, _CELL = np.float32(shape.CLIP), 4
PREFILL_CELLS, DECODE_CELLS, MIXED_CELLS = (
    V.SINGLES * -(-len(shape.INPUTS[stage]) // V.SINGLES) for stage in shape.STAGES
)
"""Cells that the inputs of an instance take."""

_PREFILL_FILL, _DECODE_FILL, _MIXED_FILL = (
    (0.0,) * (cells - len(shape.INPUTS[stage]))
    for stage, cells in zip(shape.STAGES, (PREFILL_CELLS, DECODE_CELLS, MIXED_CELLS), strict=True)
)


def _scales(stage: str, filling: tuple[float, ...]) -> tuple[float, ...]:
    scales = {feature.name: float(feature.scale) for feature in shape.COLUMNS[stage]}
    return (*(scales[name] for name in shape.INPUTS[stage]), *(1.0 for _ in filling))


_PREFILL_SCALES, _DECODE_SCALES, _MIXED_SCALES = (
    _scales(stage, filling)
    for stage, filling in zip(shape.STAGES, (_PREFILL_FILL, _DECODE_FILL, _MIXED_FILL), strict=True)
)


@inline
def weights_of(S: int, router: int, s: int, stage: int, columns: int, out: int) -> None:
    """Writes the weight of each column for this request, float64; the last vector may reach behind the columns."""
    weights = stage + 8 * _FLAGS
    for k in range(0, columns, V.WIDTH):
        V.store_floats(out, k, V.load_floats(weights, k))
    row = R.request(S, router, s)
    for r in range(R.REQUEST_COLUMNS):
        weights += columns * 8
        if ldcf(stage, 1 + r) != 0.0:
            x = np.float64(np.float32(row[r] / R.REQUEST_SCALES[r]))
            for k in range(0, columns, V.WIDTH):
                V.store_floats(out, k, V.load_floats(out, k) + V.load_floats(weights, k) * x)


@inline
def add_profile(cost: float, weights: int, row: tuple[float, ...], whole: bool) -> float:
    """The cost with the profile's columns, or only with the index, of an instance that may be assigned."""
    if whole:
        return dot_ratios(cost, weights, row, _PROFILE_SCALES)
    return dot_ratios(cost, weights + 8 * _INDEX, (row[_INDEX],), (_PROFILE_SCALES[_INDEX],))


@rare
def weigh_prefill(S: int, router: int, s: int, stage: int, weights: int, out: int) -> None:
    """Costs of the prefill pool; `weights` is room for the weight of each column."""
    weights_of(S, router, s, stage, R.PREFILL_FEATURES, weights)
    rows, prompt, ttft, age = ledger.prefill_rows(S, router), R.prompt_of(s), R.ttft_of(S, s), R.poll_age(S)
    profile, whole = weights + 8 * (R.PREFILL_FEATURES - R.PROFILE_COLUMNS), ldcf(stage, 0) != 0.0
    for p in range(ldc(S, L.H_PREFILLS)):
        if value(rows, L.PRE_GROUP, L.PRE_OPEN, p) != 0:
            continue
        about = R.about(S, p)
        row, constants = F.prefill_state(prefill_view(S, router, p), prompt, ttft, age, about), F.profile(1.0, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.PREFILL_SCALES), profile, constants, whole)
        stf(grouped(rows, L.PRE_GROUP, p), L.PRE_COST, cost)
        if out != 0:
            beside = (constants[_TAU_PREFILL], constants[_CAPACITY], constants[_INDEX])
            store_clipped(out, row + beside + _PREFILL_FILL, _PREFILL_SCALES, _CLIP)
            out += PREFILL_CELLS * _CELL


@rare
def weigh_decode(S: int, router: int, s: int, stage: int, weights: int, out: int) -> None:
    """Costs of the decode pool, likewise."""
    weights_of(S, router, s, stage, R.DECODE_FEATURES, weights)
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    tpot, age, prefills = R.tpot_of(S, s), R.poll_age(S), ldc(S, L.H_PREFILLS)
    profile, whole = weights + 8 * (R.DECODE_FEATURES - R.PROFILE_COLUMNS), ldcf(stage, 0) != 0.0
    for d in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, d) != 0:
            continue
        about = R.about(S, prefills + d)
        row = F.decode_state(decode_view(S, router, d), prompt, predicted, tpot, age, about)
        constants = F.profile(1.0, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.DECODE_SCALES), profile, constants, whole)
        stf(grouped(rows, L.DEC_GROUP, d), L.DEC_COST, cost)
        if out != 0:
            beside = (constants[_TAU_DECODE], constants[_CAPACITY], constants[_INDEX])
            store_clipped(out, row + beside + _DECODE_FILL, _DECODE_SCALES, _CLIP)
            out += DECODE_CELLS * _CELL


@rare
def weigh_mixed(S: int, router: int, s: int, stage: int, weights: int, out: int) -> None:
    """Costs of the mixed pool, likewise, in the decode rows."""
    weights_of(S, router, s, stage, R.MIXED_FEATURES, weights)
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    ttft, tpot, age = R.ttft_of(S, s), R.tpot_of(S, s), R.poll_age(S)
    profile, whole = weights + 8 * (R.MIXED_FEATURES - R.PROFILE_COLUMNS), ldcf(stage, 0) != 0.0
    for m in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, m) != 0:
            continue
        first, view, about = prefill_view(S, router, m), decode_view(S, router, m), R.about(S, m)
        row = F.mixed_state(first, view, prompt, predicted, ttft, tpot, age, about)
        constants = F.profile(1.0, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.MIXED_SCALES), profile, constants, whole)
        stf(grouped(rows, L.DEC_GROUP, m), L.DEC_COST, cost)
        if out != 0:
            beside = (constants[_TAU_PREFILL], constants[_TAU_DECODE], constants[_CAPACITY], constants[_INDEX])
            store_clipped(out, row + beside + _MIXED_FILL, _MIXED_SCALES, _CLIP)
            out += MIXED_CELLS * _CELL


@inline
def least_weighed(rows: int, group: int, mark: int, field: int, n: int) -> int:
    """The instance of least cost among those that may be assigned; costs are float64 of either sign."""
    found, least = -1, np.inf
    for i in range(n):
        row = grouped(rows, group, i)
        if ldf(row, mark) == 0.0:
            cost = ldf(row, field)
            if found < 0 or cost < least:
                found, least = i, cost
    return found


@inline
def least_prefill(S: int, router: int) -> int:
    """The prefill instance of least cost."""
    return least_weighed(ledger.prefill_rows(S, router), L.PRE_GROUP, L.PRE_OPEN, L.PRE_COST, ldc(S, L.H_PREFILLS))


@inline
def least_decode(S: int, router: int) -> int:
    """The decode (or mixed) instance of least cost."""
    return least_weighed(ledger.decode_rows(S, router), L.DEC_GROUP, L.DEC_OPEN, L.DEC_COST, ldc(S, L.H_DECODES))
