"""The features of the pending decision, computed inside compiled code by the formulas of `envs/features.py`.

The rows are float32, as `envs/feature_arrays.py` makes them from the integer views: the same bits.
"""

from __future__ import annotations

from .. import features as F
from ..cluster import PS_PER_S
from . import layout as L
from . import ledger
from .admission import decode_view, prefill_view
from .compile import inline
from .memory import copy_words, ld, ld32, ldc, ldcf, store_ratios
from .slots import trace_row

REQUEST_COLUMNS, PREFILL_FEATURES, DECODE_FEATURES, MIXED_FEATURES, PROFILE_COLUMNS = (
    len(columns) for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED, F.PROFILE)
)
REQUEST_SCALES, PREFILL_SCALES, DECODE_SCALES, MIXED_SCALES, PROFILE_SCALES = (
    tuple(float(feature.scale) for feature in columns)
    for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED, F.PROFILE)
)
assert PROFILE_COLUMNS % 2 == 0, "a profile is copied as whole words"
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
    return ldc(trace_row(S, ld32(s, L.S_REQUEST)), L.T_TTFT) / _PS


@inline
def tpot_of(S: int, s: int) -> float:
    """Its TPOT target, s."""
    return ldc(trace_row(S, ld32(s, L.S_REQUEST)), L.T_TPOT) / _PS


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
def request(S: int, router: int, s: int) -> tuple[float, ...]:
    """REQUEST of the request in slot address s, in units."""
    last = ld(S, L.H_LAST + router)
    since = 0.0 if last < 0 else (ld(S, L.H_NOW) - last) / _PS
    tight = float(ledger.is_tight(ld32(s, L.S_PLACE)))
    return F.request_row(prompt_of(s), predicted_of(s), tight, ttft_of(S, s), tpot_of(S, s), since)


@inline
def write_request(S: int, router: int, s: int, out: int) -> None:
    """Writes REQUEST of the request in slot address s, len(REQUEST) float32."""
    store_ratios(out, request(S, router, s), REQUEST_SCALES)


@inline
def write_prefill(S: int, router: int, s: int, p: int, out: int, profiles: int) -> None:
    """Writes PREFILL of instance p for the request in slot address s."""
    view, constants = prefill_view(S, router, p), about(S, p)
    row = F.prefill_state(view, prompt_of(s), ttft_of(S, s), poll_age(S), constants)
    store_ratios(out, row, PREFILL_SCALES)
    write_profile(out + (PREFILL_FEATURES - PROFILE_COLUMNS) * 4, profiles, p, view[6])


@inline
def write_decode(S: int, router: int, s: int, d: int, out: int, profiles: int) -> None:
    """Writes DECODE of instance d for the request in slot address s."""
    view, constants = decode_view(S, router, d), about(S, ldc(S, L.H_PREFILLS) + d)
    row = F.decode_state(view, prompt_of(s), predicted_of(s), tpot_of(S, s), poll_age(S), constants)
    store_ratios(out, row, DECODE_SCALES)
    i = ldc(S, L.H_PREFILLS) + d
    write_profile(out + (DECODE_FEATURES - PROFILE_COLUMNS) * 4, profiles, i, view[10])


@inline
def write_mixed(S: int, router: int, s: int, m: int, out: int, profiles: int) -> None:
    """Writes MIXED of instance m for the request in slot address s."""
    first, view = prefill_view(S, router, m), decode_view(S, router, m)
    prompt, predicted, ttft, tpot = prompt_of(s), predicted_of(s), ttft_of(S, s), tpot_of(S, s)
    row = F.mixed_state(first, view, prompt, predicted, ttft, tpot, poll_age(S), about(S, m))
    store_ratios(out, row, MIXED_SCALES)
    write_profile(out + (MIXED_FEATURES - PROFILE_COLUMNS) * 4, profiles, m, view[10])


@inline
def write_profile(out: int, profiles: int, i: int, up: int) -> None:
    """Writes PROFILE of instance i (prefill instances first): its row of `profiles`, but for the last column."""
    copy_words(out, profiles + i * (PROFILE_COLUMNS * 4), PROFILE_COLUMNS // 2)
    store_ratios(out + (PROFILE_COLUMNS - 1) * 4, (up,), (PROFILE_SCALES[-1],))
