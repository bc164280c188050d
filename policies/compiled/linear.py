"""Linear: the least weighted sum of an instance's features, with weights that depend on the request.

    cost(i) = Σ over columns k of (w(k) + Σ over request features r of w(r, k) · x(r)) · x(i, k)

The bracket is the same for all instances of a pool: it is worked out once per decision.
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
from ...envs.simulator.slots import slot_at
from .scores import value

STAGES = ("prefill", "decode", "mixed")
"""Order in the parameter vector: of each stage the weights of the columns, then those of their products with each
request feature."""

_ROWS = 1 + R.REQUEST_COLUMNS
_DECODE = 8 * _ROWS * R.PREFILL_FEATURES
_MIXED = _DECODE + 8 * _ROWS * R.DECODE_FEATURES


@rare
def linear(S: int, router: int, state: int, parameters: int) -> tuple[int, int, float]:
    """Least cost in each pool."""
    s = slot_at(S, ld(S, L.H_PENDING))
    if ldc(S, L.H_MIXED) != 0:
        weigh(S, router, s, parameters + _MIXED, R.MIXED_FEATURES, state)
        m = least_mixed(S, router, s, state)
        return m, m, 1.0
    weigh(S, router, s, parameters, R.PREFILL_FEATURES, state)
    p = least_prefill(S, router, s, state)
    weigh(S, router, s, parameters + _DECODE, R.DECODE_FEATURES, state)
    return p, least_decode(S, router, s, state), 1.0


@inline
def weigh(S: int, router: int, s: int, weights: int, columns: int, out: int) -> None:
    """Writes the weight of each column for this request, float64."""
    for k in range(columns):
        stf(out, k, ldcf(weights, k))
    row = R.request(S, router, s)
    for r in range(R.REQUEST_COLUMNS):
        x = np.float64(np.float32(row[r] / R.REQUEST_SCALES[r]))
        weights += columns * 8
        for k in range(columns):
            stf(out, k, ldf(out, k) + ldcf(weights, k) * x)


@inline
def least_prefill(S: int, router: int, s: int, weights: int) -> int:
    """The prefill instance of least cost."""
    rows, prompt, ttft, age = ledger.prefill_rows(S, router), R.prompt_of(s), R.ttft_of(S, s), R.poll_age(S)
    found, least = -1, np.inf
    for p in range(ldc(S, L.H_PREFILLS)):
        if value(rows, L.PRE_GROUP, L.PRE_OPEN, p) != 0:
            continue
        view, about = prefill_view(S, router, p), R.about(S, p)
        row = F.prefill_state(view, prompt, ttft, age, about) + F.profile(1.0, about)
        cost = dot_ratios(weights, row, R.PREFILL_SCALES)
        if found < 0 or cost < least:
            found, least = p, cost
    return found


@inline
def least_decode(S: int, router: int, s: int, weights: int) -> int:
    """The decode instance of least cost."""
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    tpot, age = R.tpot_of(S, s), R.poll_age(S)
    found, least = -1, np.inf
    for d in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, d) != 0:
            continue
        view, about = decode_view(S, router, d), R.about(S, ldc(S, L.H_PREFILLS) + d)
        row = F.decode_state(view, prompt, predicted, tpot, age, about) + F.profile(1.0, about)
        cost = dot_ratios(weights, row, R.DECODE_SCALES)
        if found < 0 or cost < least:
            found, least = d, cost
    return found


@inline
def least_mixed(S: int, router: int, s: int, weights: int) -> int:
    """The mixed instance of least cost."""
    rows, prompt, predicted = ledger.decode_rows(S, router), R.prompt_of(s), R.predicted_of(s)
    ttft, tpot, age = R.ttft_of(S, s), R.tpot_of(S, s), R.poll_age(S)
    found, least = -1, np.inf
    for m in range(ldc(S, L.H_DECODES)):
        if value(rows, L.DEC_GROUP, L.DEC_OPEN, m) != 0:
            continue
        first, view, about = prefill_view(S, router, m), decode_view(S, router, m), R.about(S, m)
        row = F.mixed_state(first, view, prompt, predicted, ttft, tpot, age, about) + F.profile(1.0, about)
        cost = dot_ratios(weights, row, R.MIXED_SCALES)
        if found < 0 or cost < least:
            found, least = m, cost
    return found
