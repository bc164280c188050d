"""The ledger: what a router itself knows is in flight (docs/model.md, "What the router sees").

One implementation for the simulator and the live router, driven by the same events: admitted, prefill done, first
token, tokens, finished, failed. Sums are kept incrementally. A request that streams gets a token with every step of its
engine, so its share of Σ max(0, ô − g) is max(0, X − step), X = the step at which g reaches ô: the ledger holds Σ X, the
count and the smallest X of those that have not crossed, and drops each when its step has passed.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .arithmetic import steps_within_each
from .compile import inline, rare
from .memory import ld, ld32, ldc, st, st32
from .slots import decode_of, leap_at, prefill_of, region, router_of, slot_at


@inline
def prefill_row(S: int, router: int, vector: int) -> int:
    """Address of a vector over prefill rows of a router's ledger."""
    return region(S, L.H_O_LEDGER) + (router * ldc(S, L.H_LEDGER_STRIDE) + vector * ldc(S, L.H_PRE_PAD)) * 8


@inline
def decode_row(S: int, router: int, vector: int) -> int:
    """Address of a vector over decode rows of a router's ledger."""
    words = router * ldc(S, L.H_LEDGER_STRIDE) + L.PRE_VECTORS * ldc(S, L.H_PRE_PAD) + vector * ldc(S, L.H_DEC_PAD)
    return region(S, L.H_O_LEDGER) + words * 8


@inline
def crossings_at(S: int, router: int, d: int) -> int:
    """Address of the crossing keys (X << KEY_SHIFT | slot) of a router's streams on decode instance d."""
    return region(S, L.H_O_CROSS) + (router * ldc(S, L.H_DECODES) + d) * ldc(S, L.H_BATCH_STRIDE) * 8


@inline
def bump(vector: int, i: int, by: int) -> None:
    """Adds `by` to element i of a vector."""
    st(vector, i, ld(vector, i) + by)


@inline
def positive(x: int) -> int:
    """max(0, x)."""
    return x & ~(x >> 63)


@inline
def is_tight(place: int) -> int:
    """1 for a request of the strict SLO class."""
    return 1 - ((place & L.LOOSE_FLAG) >> 27)


@inline
def admitted(S: int, s: int) -> None:
    """The request in slot address s was sent to its instances."""
    place = ld32(s, L.S_PLACE)
    router, p, d, tight = router_of(place), prefill_of(place), decode_of(place), is_tight(place)
    prompt, predicted = ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED)
    bump(prefill_row(S, router, L.PRE_QUEUED), p, 1)
    bump(prefill_row(S, router, L.PRE_TOKENS), p, prompt)
    bump(prefill_row(S, router, L.PRE_STRICT), p, tight)
    bump(decode_row(S, router, L.DEC_IN_FLIGHT), d, 1)
    bump(decode_row(S, router, L.DEC_PENDING), d, 1)
    bump(decode_row(S, router, L.DEC_COMMITTED), d, prompt + predicted)
    bump(decode_row(S, router, L.DEC_OUTPUT), d, predicted)
    bump(decode_row(S, router, L.DEC_STATIC), d, predicted)
    bump(decode_row(S, router, L.DEC_CONTEXT), d, prompt)
    bump(decode_row(S, router, L.DEC_STRICT), d, tight)


@inline
def prefill_done(S: int, s: int) -> None:
    """Its prefill ended, well or not: it leaves the prefill row."""
    place = ld32(s, L.S_PLACE)
    router, p = router_of(place), prefill_of(place)
    bump(prefill_row(S, router, L.PRE_QUEUED), p, -1)
    bump(prefill_row(S, router, L.PRE_TOKENS), p, -ld32(s, L.S_PROMPT))
    bump(prefill_row(S, router, L.PRE_STRICT), p, -is_tight(place))


@inline
def first_token(S: int, s: int) -> None:
    """Its first token came from the decode instance: it no longer pends there."""
    place = ld32(s, L.S_PLACE)
    bump(decode_row(S, router_of(place), L.DEC_PENDING), decode_of(place), -1)


@inline
def token(S: int, s: int, before: int) -> None:
    """One token came out of a request that does not stream and had `before`."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    bump(decode_row(S, router, L.DEC_STATIC), d, (before - ld32(s, L.S_PREDICTED)) >> 63)
    bump(decode_row(S, router, L.DEC_CONTEXT), d, 1)


@inline
def streams(S: int, k: int, s: int, step: int, finish: int) -> None:
    """It gets a token with every step after `step`, the last with step `finish`."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    crossing = finish - ld32(s, L.S_OUTPUT) + ld32(s, L.S_PREDICTED)
    bump(decode_row(S, router, L.DEC_STATIC), d, -positive(crossing - step))
    bump(decode_row(S, router, L.DEC_CONTEXT), d, -step)
    bump(decode_row(S, router, L.DEC_STREAMS), d, 1)
    if crossing > step:
        count = decode_row(S, router, L.DEC_CROSS_COUNT)
        at = ld(count, d)
        key = (crossing << L.KEY_SHIFT) | k
        st(crossings_at(S, router, d), at, key)
        st32(s, L.S_CROSS, at)
        st(count, d, at + 1)
        bump(decode_row(S, router, L.DEC_CROSS_SUM), d, crossing)
        least = decode_row(S, router, L.DEC_CROSS_MIN)
        st(least, d, min(ld(least, d), key))
    else:
        st32(s, L.S_CROSS, -1)


@inline
def drop_crossing(S: int, s: int, router: int, d: int) -> None:
    """Takes a stream out of the crossings, if it is still there."""
    at = ld32(s, L.S_CROSS)
    if at >= 0:
        keys = crossings_at(S, router, d)
        count = decode_row(S, router, L.DEC_CROSS_COUNT)
        last = ld(count, d) - 1
        key = ld(keys, at)
        moved = ld(keys, last)
        least = decode_row(S, router, L.DEC_CROSS_MIN)
        if ld(least, d) == key:
            st(least, d, smallest_but(keys, last + 1, at))
        st(keys, at, moved)
        st32(slot_at(S, moved & L.KEY_MASK), L.S_CROSS, at)
        st32(s, L.S_CROSS, -1)
        st(keys, last, L.FOREVER)
        st(count, d, last)
        bump(decode_row(S, router, L.DEC_CROSS_SUM), d, -(key >> L.KEY_SHIFT))


@inline
def smallest_but(keys: int, count: int, at: int) -> int:
    """Smallest of `count` keys but that at `at`; FOREVER fills the array up to a whole group of lanes.

    To be read before that key is overwritten: a vector that was just stored in part is slow to load.
    """
    least = V.spread(L.FOREVER)
    for i in range(0, count, L.LANES):
        least = V.minimum(least, V.choose(V.counting(i) == at, V.spread(L.FOREVER), V.load(keys, i)))
    return V.least_of(least)


@inline
def pauses(S: int, s: int, step: int, generated: int) -> None:
    """It was preempted after `step`, with `generated` tokens out: it streams no more."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    drop_crossing(S, s, router, d)
    bump(decode_row(S, router, L.DEC_STATIC), d, positive(ld32(s, L.S_PREDICTED) - generated))
    bump(decode_row(S, router, L.DEC_CONTEXT), d, step)
    bump(decode_row(S, router, L.DEC_STREAMS), d, -1)


@inline
def finished(S: int, s: int, step: int) -> None:
    """It streamed, and its last token came with `step`."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    prompt, predicted = ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED)
    drop_crossing(S, s, router, d)
    bump(decode_row(S, router, L.DEC_IN_FLIGHT), d, -1)
    bump(decode_row(S, router, L.DEC_COMMITTED), d, -(prompt + predicted))
    bump(decode_row(S, router, L.DEC_OUTPUT), d, -predicted)
    bump(decode_row(S, router, L.DEC_CONTEXT), d, step - prompt - ld32(s, L.S_OUTPUT))
    bump(decode_row(S, router, L.DEC_STREAMS), d, -1)
    bump(decode_row(S, router, L.DEC_STRICT), d, -is_tight(place))


@inline
def leaves(S: int, s: int, generated: int, pending: int) -> None:
    """It finished or failed without streaming, with `generated` tokens out; `pending`: none from the decode side."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    prompt, predicted = ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED)
    bump(decode_row(S, router, L.DEC_IN_FLIGHT), d, -1)
    bump(decode_row(S, router, L.DEC_PENDING), d, -pending)
    bump(decode_row(S, router, L.DEC_COMMITTED), d, -(prompt + predicted))
    bump(decode_row(S, router, L.DEC_OUTPUT), d, -predicted)
    bump(decode_row(S, router, L.DEC_STATIC), d, -positive(predicted - generated))
    bump(decode_row(S, router, L.DEC_CONTEXT), d, -(prompt + generated))
    bump(decode_row(S, router, L.DEC_STRICT), d, -is_tight(place))


@inline
def sync(S: int, router: int, t: int) -> None:
    """Brings a router's ledger up to t: the steps that its decode instances have completed by then.

    The inverse of a leap for all instances at once; see `steps_within` for the formula.
    """
    start, first = leap_at(S, L.LEAP_START), leap_at(S, L.LEAP_FIRST)
    growth, steps = leap_at(S, L.LEAP_GROWTH), leap_at(S, L.LEAP_STEPS)
    done, now = leap_at(S, L.LEAP_DONE), leap_at(S, L.LEAP_NOW)
    pending, fresh = decode_row(S, router, L.DEC_PENDING), decode_row(S, router, L.DEC_FRESH)
    least = decode_row(S, router, L.DEC_CROSS_MIN)
    crossed = V.spread(0)
    for d in range(0, ldc(S, L.H_DEC_PAD), L.LANES):
        made = steps_within_each(V.load(first, d), V.load(growth, d), t - V.load(start, d))
        made = V.minimum(made, V.load(steps, d))
        step = V.load(done, d) + made
        V.store(now, d, step)
        settled = V.load(fresh, d) & (0 - V.ones(made > 0))  # their leap has made a step
        V.store(pending, d, V.load(pending, d) - settled)
        V.store(fresh, d, V.load(fresh, d) - settled)
        crossed = crossed | ((V.load(least, d) >> L.KEY_SHIFT) - step)
    if V.any_bits(crossed) < 0:
        drop_crossed(S, router)


@rare
def drop_crossed(S: int, router: int) -> None:
    """Drops the streams that have passed their predicted length."""
    now, least = leap_at(S, L.LEAP_NOW), decode_row(S, router, L.DEC_CROSS_MIN)
    for d in range(ldc(S, L.H_DECODES)):
        while (ld(least, d) >> L.KEY_SHIFT) < ld(now, d):
            drop_crossing(S, slot_at(S, ld(least, d) & L.KEY_MASK), router, d)


@inline
def remaining_output(S: int, router: int, d: int) -> int:
    """Σ max(0, ô − g) over a router's requests on decode instance d, at the last sync."""
    streaming = ld(decode_row(S, router, L.DEC_CROSS_SUM), d)
    streaming -= ld(leap_at(S, L.LEAP_NOW), d) * ld(decode_row(S, router, L.DEC_CROSS_COUNT), d)
    return ld(decode_row(S, router, L.DEC_STATIC), d) + streaming


@inline
def context(S: int, router: int, d: int) -> int:
    """Σ (prompt + g) over a router's requests on decode instance d, at the last sync."""
    streaming = ld(leap_at(S, L.LEAP_NOW), d) * ld(decode_row(S, router, L.DEC_STREAMS), d)
    return ld(decode_row(S, router, L.DEC_CONTEXT), d) + streaming
