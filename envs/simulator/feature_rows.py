"""The features of the pending decision, computed inside compiled code by the formulas of `envs/features.py`.

The rows are float32, as `envs/feature_arrays.py` makes them from the integer views: the same bits.
"""

from __future__ import annotations

from .. import features as F
from ..cluster import PS_PER_S
from . import layout as L
from . import ledger
from .admission import PREFILL_COLUMNS, see_decode, see_prefill
from .compile import inline
from .memory import ld, ld32, ldc, ldcf, stf32
from .slots import region

REQUEST_COLUMNS, PREFILL_FEATURES, DECODE_FEATURES, MIXED_FEATURES = (
    len(columns) for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED)
)
_REQUEST_SCALES, _PREFILL_SCALES, _DECODE_SCALES, _MIXED_SCALES = (
    tuple(float(feature.scale) for feature in columns) for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED)
)
_ABOUT = len(F.ABOUT)
_PS = float(PS_PER_S)


@inline
def prompt_of(s: int) -> float:
    """Prompt tokens of the request in slot address s."""
    return float(ld32(s, L.S_PROMPT))


@inline
def predicted_of(s: int) -> float:
    """Its ô, tokens."""
    return float(ld32(s, L.S_PREDICTED))


@inline
def ttft_of(S: int, s: int) -> float:
    """Its TTFT target, s."""
    return ldc(ldc(S, L.H_T_TTFT), ld32(s, L.S_REQUEST)) / _PS


@inline
def tpot_of(S: int, s: int) -> float:
    """Its TPOT target, s."""
    return ldc(ldc(S, L.H_T_TPOT), ld32(s, L.S_REQUEST)) / _PS


@inline
def poll_age(S: int) -> float:
    """Time since the visible poll, s."""
    return (ld(S, L.H_NOW) - ld(S, L.H_VISIBLE)) / _PS


@inline
def about(S: int, i: int) -> tuple[float, ...]:
    """ABOUT of instance i (prefill instances first)."""
    row = ldc(S, L.H_ABOUT) + i * (_ABOUT * 8)
    return (
        ldcf(row, 0),
        ldcf(row, 1),
        ldcf(row, 2),
        ldcf(row, 3),
        ldcf(row, 4),
        ldcf(row, 5),
        ldcf(row, 6),
        ldcf(row, 7),
        ldcf(row, 8),
        ldcf(row, 9),
        ldcf(row, 10),
        ldcf(row, 11),
    )


@inline
def prefill_view(S: int, router: int, p: int) -> tuple[float, ...]:
    """PREFILL_VIEW of prefill row p."""
    view = region(S, L.H_O_SCRATCH)
    see_prefill(S, router, p, view, False)
    return (
        float(ld(view, 0)),
        float(ld(view, 1)),
        float(ld(view, 2)),
        float(ld(view, 3)),
        float(ld(view, 4)),
        float(ld(view, 5)),
        float(ld(view, 6)),
    )


@inline
def decode_view(S: int, router: int, d: int) -> tuple[float, ...]:
    """DECODE_VIEW of decode row d."""
    view = region(S, L.H_O_SCRATCH) + PREFILL_COLUMNS * 8
    see_decode(S, router, d, view, False)
    return (
        float(ld(view, 0)),
        float(ld(view, 1)),
        float(ld(view, 2)),
        float(ld(view, 3)),
        float(ld(view, 4)),
        float(ld(view, 5)),
        float(ld(view, 6)),
        float(ld(view, 7)),
        float(ld(view, 8)),
        float(ld(view, 9)),
        float(ld(view, 10)),
    )


@inline
def write_request(S: int, router: int, s: int, out: int) -> None:
    """Writes REQUEST of the request in slot address s, len(REQUEST) float32."""
    last = ld(S, L.H_LAST + router)
    since = 0.0 if last < 0 else (ld(S, L.H_NOW) - last) / _PS
    tight = float(ledger.is_tight(ld32(s, L.S_PLACE)))
    row = F.request_row(prompt_of(s), predicted_of(s), tight, ttft_of(S, s), tpot_of(S, s), since)
    for k in range(REQUEST_COLUMNS):
        stf32(out, k, row[k] / _REQUEST_SCALES[k])


@inline
def write_prefill(S: int, router: int, s: int, p: int, out: int) -> None:
    """Writes PREFILL of instance p for the request in slot address s, len(PREFILL) float32."""
    row = F.prefill_row(prefill_view(S, router, p), prompt_of(s), ttft_of(S, s), poll_age(S), about(S, p))
    for k in range(PREFILL_FEATURES):
        stf32(out, k, row[k] / _PREFILL_SCALES[k])


@inline
def write_decode(S: int, router: int, s: int, d: int, out: int) -> None:
    """Writes DECODE of instance d for the request in slot address s, len(DECODE) float32."""
    view, constants = decode_view(S, router, d), about(S, ldc(S, L.H_PREFILLS) + d)
    row = F.decode_row(view, prompt_of(s), predicted_of(s), tpot_of(S, s), poll_age(S), constants)
    for k in range(DECODE_FEATURES):
        stf32(out, k, row[k] / _DECODE_SCALES[k])


@inline
def write_mixed(S: int, router: int, s: int, m: int, out: int) -> None:
    """Writes MIXED of instance m for the request in slot address s, len(MIXED) float32."""
    first, view = prefill_view(S, router, m), decode_view(S, router, m)
    prompt, predicted, ttft, tpot = prompt_of(s), predicted_of(s), ttft_of(S, s), tpot_of(S, s)
    row = F.mixed_row(first, view, prompt, predicted, ttft, tpot, poll_age(S), about(S, m))
    for k in range(MIXED_FEATURES):
        stf32(out, k, row[k] / _MIXED_SCALES[k])
