"""Linear: the least weighted sum of an instance's features, with weights that depend on the request.

    cost(i) = Σ over columns k of (w(k) + Σ over request features r of w(r, k) · x(r)) · x(i, k)

The bracket is the same for all instances of a pool: it is worked out once per decision. Weights that are 0 are left out
where whole groups of them are: that changes no bit of the sum.
"""

from __future__ import annotations

import numpy as np

from ...envs import features as F
from ...envs.simulator import feature_rows as R
from ...envs.simulator import layout as L
from ...envs.simulator import ledger
from ...envs.simulator.admission import decode_view, prefill_view
from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import dot_ratios, ld, ldc, ldcf, ldf, stf
from ...envs.simulator.slots import grouped, slot_at
from .scores import value

STAGES = ("prefill", "decode", "mixed")
"""Order in the parameter vector. Of each stage: whether a column of the profile but the index has a weight, whether a
product with each request feature has one, the weights of the columns, and those of their products with each request
feature."""

_FLAGS = 1 + R.REQUEST_COLUMNS
_PREFILL_WORDS, _DECODE_WORDS = (_FLAGS * (1 + columns) for columns in (R.PREFILL_FEATURES, R.DECODE_FEATURES))
_PROFILE = [feature.name for feature in F.PROFILE]
_INDEX = _PROFILE.index("index")
_PROFILE_SCALES = R.PREFILL_SCALES[-R.PROFILE_COLUMNS :]


@rare
def linear(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool."""
    s = slot_at(S, ld(S, L.H_PENDING))
    if ldc(S, L.H_MIXED) != 0:
        stage = parameters + 8 * (_PREFILL_WORDS + _DECODE_WORDS)
        weigh(S, router, s, stage, R.MIXED_FEATURES, state)
        m = least_mixed(S, router, s, state, ldcf(stage, 0) != 0.0)
        return m, m, 1.0
    weigh(S, router, s, parameters, R.PREFILL_FEATURES, state)
    p = least_prefill(S, router, s, state, ldcf(parameters, 0) != 0.0)
    stage = parameters + 8 * _PREFILL_WORDS
    weigh(S, router, s, stage, R.DECODE_FEATURES, state)
    return p, least_decode(S, router, s, state, ldcf(stage, 0) != 0.0), 1.0


@inline
def weigh(S: int, router: int, s: int, stage: int, columns: int, out: int) -> None:
    """Writes the weight of each column for this request, float64."""
    weights = stage + 8 * _FLAGS
    for k in range(columns):
        stf(out, k, ldcf(weights, k))
    row = R.request(S, router, s)
    for r in range(R.REQUEST_COLUMNS):
        weights += columns * 8
        if ldcf(stage, 1 + r) != 0.0:
            x = np.float64(np.float32(row[r] / R.REQUEST_SCALES[r]))
            for k in range(columns):
                stf(out, k, ldf(out, k) + ldcf(weights, k) * x)


@inline
def add_profile(cost: float, weights: int, about: tuple[float, ...], whole: bool) -> float:
    """The cost with the profile's columns, or only with the index, of an instance that may be assigned."""
    row = F.profile(1.0, about)
    if whole:
        return dot_ratios(cost, weights, row, _PROFILE_SCALES)
    return dot_ratios(cost, weights + 8 * _INDEX, (row[_INDEX],), (_PROFILE_SCALES[_INDEX],))


@inline
def least_prefill(S: int, router: int, s: int, weights: int, whole: bool) -> int:
    """The prefill instance of least cost; leaves the costs in the ledger's rows."""
    rows, prompt, ttft, age = ledger.prefill_rows(S, router), R.prompt_of(s), R.ttft_of(S, s), R.poll_age(S)
    profile = weights + 8 * (R.PREFILL_FEATURES - R.PROFILE_COLUMNS)
    found, least = -1, np.inf
    for p in range(ldc(S, L.H_PREFILLS)):
        if value(rows, L.PRE_GROUP, L.PRE_OPEN, p) != 0:
            continue
        about = R.about(S, p)
        row = F.prefill_state(prefill_view(S, router, p), prompt, ttft, age, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.PREFILL_SCALES), profile, about, whole)
        stf(grouped(rows, L.PRE_GROUP, p), L.PRE_COST, cost)
        if found < 0 or cost < least:
            found, least = p, cost
    return found


@inline
def least_decode(S: int, router: int, s: int, weights: int, whole: bool) -> int:
    """The decode instance of least cost; leaves the costs in the ledger's rows."""
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    tpot, age, prefills = R.tpot_of(S, s), R.poll_age(S), ldc(S, L.H_PREFILLS)
    profile = weights + 8 * (R.DECODE_FEATURES - R.PROFILE_COLUMNS)
    found, least = -1, np.inf
    for d in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, d) != 0:
            continue
        about = R.about(S, prefills + d)
        row = F.decode_state(decode_view(S, router, d), prompt, predicted, tpot, age, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.DECODE_SCALES), profile, about, whole)
        stf(grouped(rows, L.DEC_GROUP, d), L.DEC_COST, cost)
        if found < 0 or cost < least:
            found, least = d, cost
    return found


@inline
def least_mixed(S: int, router: int, s: int, weights: int, whole: bool) -> int:
    """The mixed instance of least cost; leaves the costs in the ledger's rows."""
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    ttft, tpot, age = R.ttft_of(S, s), R.tpot_of(S, s), R.poll_age(S)
    profile = weights + 8 * (R.MIXED_FEATURES - R.PROFILE_COLUMNS)
    found, least = -1, np.inf
    for m in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, m) != 0:
            continue
        first, view, about = prefill_view(S, router, m), decode_view(S, router, m), R.about(S, m)
        row = F.mixed_state(first, view, prompt, predicted, ttft, tpot, age, about)
        cost = add_profile(dot_ratios(0.0, weights, row, R.MIXED_SCALES), profile, about, whole)
        stf(grouped(rows, L.DEC_GROUP, m), L.DEC_COST, cost)
        if found < 0 or cost < least:
            found, least = m, cost
    return found
