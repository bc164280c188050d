"""The features of the pending decision, computed inside compiled code by the formulas of `envs/features.py`.

The rows are float32, as `envs/feature_arrays.py` makes them from the integer views: the same bits.
"""

from __future__ import annotations

from .. import features as F
from ..cluster import PS_PER_S
from . import constants as C
from . import lanes as V
from . import layout as L
from . import ledger
from .admission import decode_view, polled_view, prefill_view
from .compile import inline, rare
from .memory import copy_words, ld, ld32, ldc, ldcf, store_ratios
from .slots import region, trace_row

REQUEST_COLUMNS, PREFILL_FEATURES, DECODE_FEATURES, MIXED_FEATURES, PROFILE_COLUMNS = (
    len(columns) for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED, F.PROFILE)
)
REQUEST_SCALES, PREFILL_SCALES, DECODE_SCALES, MIXED_SCALES, PROFILE_SCALES = (
    tuple(float(feature.scale) for feature in columns)
    for columns in (F.REQUEST, F.PREFILL, F.DECODE, F.MIXED, F.PROFILE)
)
assert PROFILE_COLUMNS % 2 == 0, "a profile is copied as whole words"
POLLED_SCALES = PREFILL_SCALES[-PROFILE_COLUMNS - 4 : -PROFILE_COLUMNS]
assert DECODE_SCALES[-PROFILE_COLUMNS - 4 : -PROFILE_COLUMNS] == POLLED_SCALES, "the polled columns are the same"
_OF_PREFILL, _OF_DECODE = (count - PROFILE_COLUMNS - 4 for count in (PREFILL_FEATURES, DECODE_FEATURES))
"""Columns of the ledger."""
PREFILL_BYTES, DECODE_BYTES = PREFILL_FEATURES * 4, DECODE_FEATURES * 4
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
def write_prefills(S: int, router: int, s: int, out: int, profiles: int) -> None:
    """Writes PREFILL of all instances for the request in slot address s, eight at a time."""
    rows, constants = ledger.prefill_rows(S, router), C.prefill_constants(S)
    prompt, ttft, age, left = prompt_of(s), ttft_of(S, s), poll_age(S), ldc(S, L.H_PREFILLS)
    i = 0
    while left > 0:
        queued, tokens, strict = V.load(rows, L.PRE_QUEUED), V.load(rows, L.PRE_TOKENS), V.load(rows, L.PRE_STRICT)
        view = V.to_floats(queued), V.to_floats(tokens), V.to_floats(strict)
        about = (
            V.load_floats(constants, C.C_TAU_PREFILL),
            0.0,
            V.load_floats(constants, C.C_PREFILL_CAPACITY),
            V.load_floats(constants, C.C_BASE_PREFILL),
            V.load_floats(constants, C.C_PER_TOKEN),
            V.load_floats(constants, C.C_PER_TOKEN_SQ),
        )
        columns = F.prefill_ledger(view, prompt, ttft, about)
        V.store_ratio_columns(out, PREFILL_BYTES, left, columns, PREFILL_SCALES[:_OF_PREFILL])
        for _ in range(min(left, V.WIDTH)):
            write_polled(S, i, out + _OF_PREFILL * 4, age, profiles)
            out += PREFILL_BYTES
            i += 1
        left -= V.WIDTH
        rows += L.PRE_GROUP * 8
        constants += C.C_PREFILL_GROUP * 8


@inline
def write_decodes(S: int, router: int, s: int, out: int, profiles: int) -> None:
    """Writes DECODE of all instances for the request in slot address s, eight at a time."""
    rows, leaps, constants = ledger.decode_rows(S, router), region(S, L.H_O_LEAP), C.decode_constants(S)
    prompt, predicted, tpot, age = prompt_of(s), predicted_of(s), tpot_of(S, s), poll_age(S)
    i, left = ldc(S, L.H_PREFILLS), ldc(S, L.H_DECODES)
    while left > 0:
        step = V.load(leaps, L.LEAP_NOW)
        streaming = V.load(rows, L.DEC_CROSS_SUM) - step * V.load(rows, L.DEC_CROSS_COUNT)
        view = (
            V.to_floats(V.load(rows, L.DEC_IN_FLIGHT)),
            V.to_floats(V.load(rows, L.DEC_PENDING)),
            V.to_floats(V.load(rows, L.DEC_COMMITTED)),
            V.to_floats(V.load(rows, L.DEC_OUTPUT)),
            V.to_floats(V.load(rows, L.DEC_STATIC) + streaming),
            V.to_floats(V.load(rows, L.DEC_CONTEXT) + step * V.load(rows, L.DEC_STREAMS)),
            V.to_floats(V.load(rows, L.DEC_STRICT)),
        )
        about = (
            0.0,
            V.load_floats(constants, C.C_TAU_DECODE),
            V.load_floats(constants, C.C_DECODE_CAPACITY),
            0.0,
            0.0,
            0.0,
            V.load_floats(constants, C.C_BASE_DECODE),
            V.load_floats(constants, C.C_PER_SEQUENCE),
            V.load_floats(constants, C.C_PER_CONTEXT),
        )
        columns = F.decode_ledger(view, prompt, predicted, tpot, about)
        V.store_ratio_columns(out, DECODE_BYTES, left, columns, DECODE_SCALES[:_OF_DECODE])
        for _ in range(min(left, V.WIDTH)):
            write_polled(S, i, out + _OF_DECODE * 4, age, profiles)
            out += DECODE_BYTES
            i += 1
        left -= V.WIDTH
        rows += L.DEC_GROUP * 8
        leaps += L.LEAP_GROUP * 8
        constants += C.C_DECODE_GROUP * 8


@inline
def write_polled(S: int, i: int, out: int, age: float, profiles: int) -> None:
    """Writes what follows the ledger's columns of instance i: those that are polled, and PROFILE."""
    used, running, waiting, up = polled_view(S, i)
    store_ratios(out, F.polled(used, running, waiting, age, about(S, i)), POLLED_SCALES)
    write_profile(out + len(POLLED_SCALES) * 4, profiles, i, up)


@rare
def write_mixes(S: int, router: int, s: int, out: int, profiles: int) -> None:
    """Writes MIXED of all instances for the request in slot address s."""
    for m in range(ldc(S, L.H_DECODES)):
        write_mixed(S, router, s, m, out + m * (MIXED_FEATURES * 4), profiles)


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
