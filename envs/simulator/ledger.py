"""The ledger: what a router itself knows is in flight (docs/model.md, "What the router sees").

One implementation for the simulator and the live router, driven by the same events: admitted, prefill done, first
token, tokens, finished, failed. Sums are kept incrementally. A request that streams gets a token with every step of
its engine, so its share of Σ max(0, ô − g) is max(0, X − step), X = the step at which g reaches ô: the ledger holds
Σ X, the count and the smallest X of those that have not crossed, and drops each when its step has passed.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .arithmetic import steps_within_each
from .compile import inline, rare
from .memory import ld, ld32, ldc, st, st32
from .slots import decode_of, grouped, leap_of, prefill_of, region, router_of, slot_at


@inline
def prefill_rows(S: int, router: int) -> int:
    """Address of the prefill rows (PRE_…) of a router's ledger."""
    return region(S, L.H_O_LEDGER) + router * ldc(S, L.H_LEDGER_STRIDE) * 8


@inline
def decode_rows(S: int, router: int) -> int:
    """Address of the decode rows (DEC_…) of a router's ledger."""
    return prefill_rows(S, router) + ldc(S, L.H_LEDGER_DECODE) * 8


@inline
def prefill_row(S: int, router: int, p: int) -> int:
    """Address of the row of prefill instance p in a router's ledger."""
    return grouped(prefill_rows(S, router), L.PRE_GROUP, p)


@inline
def decode_row(S: int, router: int, d: int) -> int:
    """Address of the row of decode instance d in a router's ledger."""
    return grouped(decode_rows(S, router), L.DEC_GROUP, d)


@inline
def crossings_at(S: int, router: int, d: int) -> int:
    """Address of the crossing keys (X << KEY_SHIFT | slot) of a router's streams on decode instance d."""
    return region(S, L.H_O_CROSS) + (router * ldc(S, L.H_DECODES) + d) * ldc(S, L.H_BATCH_STRIDE) * 8


@inline
def bump(row: int, field: int, by: int) -> None:
    """Adds `by` to a word."""
    st(row, field, ld(row, field) + by)


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
    pre, row = prefill_row(S, router, p), decode_row(S, router, d)
    bump(pre, L.PRE_QUEUED, 1)
    bump(pre, L.PRE_TOKENS, prompt)
    bump(pre, L.PRE_STRICT, tight)
    bump(row, L.DEC_IN_FLIGHT, 1)
    bump(row, L.DEC_PENDING, 1)
    bump(row, L.DEC_COMMITTED, prompt + predicted)
    bump(row, L.DEC_OUTPUT, predicted)
    bump(row, L.DEC_STATIC, predicted)
    bump(row, L.DEC_CONTEXT, prompt)
    bump(row, L.DEC_STRICT, tight)


@inline
def prefill_done(S: int, s: int) -> None:
    """Its prefill ended, well or not: it leaves the prefill row."""
    place = ld32(s, L.S_PLACE)
    pre = prefill_row(S, router_of(place), prefill_of(place))
    bump(pre, L.PRE_QUEUED, -1)
    bump(pre, L.PRE_TOKENS, -ld32(s, L.S_PROMPT))
    bump(pre, L.PRE_STRICT, -is_tight(place))


@inline
def first_token(S: int, s: int) -> None:
    """Its first token came from the decode instance: it no longer pends there."""
    place = ld32(s, L.S_PLACE)
    row = decode_row(S, router_of(place), decode_of(place))
    bump(row, L.DEC_PENDING, -1)


@inline
def tokens(S: int, s: int, before: int, count: int) -> None:
    """`count` tokens came out of a request that does not stream and had `before`."""
    place = ld32(s, L.S_PLACE)
    row = decode_row(S, router_of(place), decode_of(place))
    left = ld32(s, L.S_PREDICTED) - before
    bump(row, L.DEC_STATIC, positive(left - count) - positive(left))
    bump(row, L.DEC_CONTEXT, count)


@inline
def streams(S: int, k: int, s: int, step: int, finish: int) -> None:
    """It gets a token with every step after `step`, the last with step `finish`."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    row = decode_row(S, router, d)
    crossing = finish - ld32(s, L.S_OUTPUT) + ld32(s, L.S_PREDICTED)
    bump(row, L.DEC_STATIC, -positive(crossing - step))
    bump(row, L.DEC_CONTEXT, -step)
    bump(row, L.DEC_STREAMS, 1)
    if crossing > step:
        at = ld(row, L.DEC_CROSS_COUNT)
        key = (crossing << L.KEY_SHIFT) | k
        st(crossings_at(S, router, d), at, key)
        st32(s, L.S_CROSS, at)
        st(row, L.DEC_CROSS_COUNT, at + 1)
        bump(row, L.DEC_CROSS_SUM, crossing)
        st(row, L.DEC_CROSS_MIN, min(ld(row, L.DEC_CROSS_MIN), key))
    else:
        st32(s, L.S_CROSS, -1)


@inline
def drop_crossing(S: int, s: int, router: int, d: int, row: int) -> None:
    """Takes a stream out of the crossings of decode row `row`, if it is still there."""
    at = ld32(s, L.S_CROSS)
    if at >= 0:
        keys = crossings_at(S, router, d)
        last = ld(row, L.DEC_CROSS_COUNT) - 1
        key = ld(keys, at)
        moved = ld(keys, last)
        if ld(row, L.DEC_CROSS_MIN) == key:
            st(row, L.DEC_CROSS_MIN, smallest_but(keys, last + 1, at))
        st(keys, at, moved)
        st32(slot_at(S, moved & L.KEY_MASK), L.S_CROSS, at)
        st32(s, L.S_CROSS, -1)
        st(keys, last, L.FOREVER)
        st(row, L.DEC_CROSS_COUNT, last)
        bump(row, L.DEC_CROSS_SUM, -(key >> L.KEY_SHIFT))


@inline
def smallest_but(keys: int, count: int, at: int) -> int:
    """Smallest of `count` keys but that at `at`; FOREVER fills the array up to a whole strip.

    To be read before that key is overwritten: a vector that was just stored in part is slow to load.
    """
    never = V.spread(L.FOREVER)
    one, two, three, four = never, never, never, never
    for i in range(0, count, L.STRIP):
        one = V.minimum(one, V.choose(V.counting(i) == at, never, V.load(keys, i)))
        two = V.minimum(two, V.choose(V.counting(i + 8) == at, never, V.load(keys, i + 8)))
        three = V.minimum(three, V.choose(V.counting(i + 16) == at, never, V.load(keys, i + 16)))
        four = V.minimum(four, V.choose(V.counting(i + 24) == at, never, V.load(keys, i + 24)))
    return V.least_of(V.minimum(V.minimum(one, two), V.minimum(three, four)))


@inline
def pauses(S: int, s: int, step: int, generated: int) -> None:
    """It was preempted after `step`, with `generated` tokens out: it streams no more."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    row = decode_row(S, router, d)
    drop_crossing(S, s, router, d, row)
    bump(row, L.DEC_STATIC, positive(ld32(s, L.S_PREDICTED) - generated))
    bump(row, L.DEC_CONTEXT, step)
    bump(row, L.DEC_STREAMS, -1)


@inline
def finished(S: int, s: int, step: int) -> None:
    """It streamed, and its last token came with `step`."""
    place = ld32(s, L.S_PLACE)
    router, d = router_of(place), decode_of(place)
    prompt, predicted = ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED)
    row = decode_row(S, router, d)
    drop_crossing(S, s, router, d, row)
    bump(row, L.DEC_IN_FLIGHT, -1)
    bump(row, L.DEC_COMMITTED, -(prompt + predicted))
    bump(row, L.DEC_OUTPUT, -predicted)
    bump(row, L.DEC_CONTEXT, step - prompt - ld32(s, L.S_OUTPUT))
    bump(row, L.DEC_STREAMS, -1)
    bump(row, L.DEC_STRICT, -is_tight(place))


@inline
def leaves(S: int, s: int, generated: int, pending: int) -> None:
    """It finished or failed without streaming, with `generated` tokens out; `pending`: none from the decode side."""
    place = ld32(s, L.S_PLACE)
    prompt, predicted = ld32(s, L.S_PROMPT), ld32(s, L.S_PREDICTED)
    row = decode_row(S, router_of(place), decode_of(place))
    bump(row, L.DEC_IN_FLIGHT, -1)
    bump(row, L.DEC_PENDING, -pending)
    bump(row, L.DEC_COMMITTED, -(prompt + predicted))
    bump(row, L.DEC_OUTPUT, -predicted)
    bump(row, L.DEC_STATIC, -positive(predicted - generated))
    bump(row, L.DEC_CONTEXT, -(prompt + generated))
    bump(row, L.DEC_STRICT, -is_tight(place))


@inline
def sync(S: int, router: int, t: int) -> None:
    """Brings a router's ledger up to t: the steps that its decode instances have completed by then.

    The inverse of a leap for all instances at once; see `steps_within` for the formula.
    """
    crossed = V.spread(0)
    leaps, rows = region(S, L.H_O_LEAP), decode_rows(S, router)
    for _ in range(ldc(S, L.H_DEC_GROUPS)):
        passed = t - V.load(leaps, L.LEAP_START)
        made = steps_within_each(V.load(leaps, L.LEAP_FIRST), V.load(leaps, L.LEAP_GROWTH), passed)
        made = V.minimum(made, V.load(leaps, L.LEAP_STEPS))
        step = V.load(leaps, L.LEAP_DONE) + made
        V.store(leaps, L.LEAP_NOW, step)
        settled = V.load(rows, L.DEC_FRESH) & (0 - V.ones(made > 0))  # their leap has made a step
        V.store(rows, L.DEC_PENDING, V.load(rows, L.DEC_PENDING) - settled)
        V.store(rows, L.DEC_FRESH, V.load(rows, L.DEC_FRESH) - settled)
        crossed = crossed | ((V.load(rows, L.DEC_CROSS_MIN) >> L.KEY_SHIFT) - step)
        leaps += L.LEAP_GROUP * 8
        rows += L.DEC_GROUP * 8
    if V.any_bits(crossed) < 0:
        drop_crossed(S, router)


@rare
def drop_crossed(S: int, router: int) -> None:
    """Drops the streams that have passed their predicted length."""
    for d in range(ldc(S, L.H_DECODES)):
        row = decode_row(S, router, d)
        now = ld(leap_of(S, d), L.LEAP_NOW)
        while (ld(row, L.DEC_CROSS_MIN) >> L.KEY_SHIFT) < now:
            drop_crossing(S, slot_at(S, ld(row, L.DEC_CROSS_MIN) & L.KEY_MASK), router, d, row)


@inline
def remaining_output(S: int, d: int, row: int) -> int:
    """Σ max(0, ô − g) over a router's requests on decode instance d (its ledger row), at the last sync."""
    streaming = ld(row, L.DEC_CROSS_SUM) - ld(leap_of(S, d), L.LEAP_NOW) * ld(row, L.DEC_CROSS_COUNT)
    return ld(row, L.DEC_STATIC) + streaming


@inline
def context(S: int, d: int, row: int) -> int:
    """Σ (prompt + g) over a router's requests on decode instance d (its ledger row), at the last sync."""
    return ld(row, L.DEC_CONTEXT) + ld(leap_of(S, d), L.LEAP_NOW) * ld(row, L.DEC_STREAMS)
