"""What a router itself knows of each request in flight: its ledger, request by request.

The ledger's sums (`ledger.py`) are of no use to who wants to go on from here; these rows are. They hold what a router
has sent where and when, and what has come back: that a prefill is done, and tokens. Nothing else is read: no output
length of a request in flight, no queue or batch of an engine, no request of another router.

They are read from either kind of block: the simulator's, or that of a router in front of real engines.
"""

from __future__ import annotations

from . import layout as L
from .arithmetic import leap_time
from .compile import inline, rare
from .memory import ld, ld32, ldc, st
from .router_entries import (
    FIRST_AT,
    NUMBER,
    PREFILLED_AT,
    STAGE,
    STAGE_DECODE,
    STAGE_PREFILL,
    STAGE_TRANSFER,
)
from .slots import batch_key, engine_at, leap_of, record_at, router_of, slot_at, trace_row

IN_PREFILL, IN_TRANSFER, IN_DECODE = STAGE_PREFILL, STAGE_TRANSFER, STAGE_DECODE
"""Stages: its prefill is not done; no token has come from the decode instance; tokens come."""

(
    K_PLACE,  # prefill and decode instance and the SLO class, as in S_PLACE
    K_STAGE,
    K_PROMPT,  # tokens
    K_PREDICTED,  # ô, tokens
    K_TOKENS,  # tokens out
    K_ORDER,  # smaller for those that were sent to the same prefill instance before
    K_ARRIVAL,  # ps
    K_PREFILLED,  # when its prefill was done, ps, −1 before
    K_FIRST,  # when its first token came, ps, −1 before
    K_LAST,  # when its last token so far came, ps, −1 before
    K_TTFT,  # targets, ps
    K_TPOT,
    K_LEFT,  # tokens to come: not known, but room for what is believed
) = range(13)
KNOWN_WORDS = 13

_PLACES = L.PLACE_MASK | (L.PLACE_MASK << L.PLACE_BITS) | L.LOOSE_FLAG


@rare
def write_known(S: int, router: int, out: int, room: int) -> int:
    """Writes a row (K_…) per request of a router in flight, at the last sync; returns how many, −1 if too many.

    Those of one prefill instance whose prefill is not done stand in the order in which they were sent there.
    """
    if ld(S, L.H_LIVE) > room:
        return -1
    if ldc(S, L.H_RECORDS) == 0:
        return write_told(S, out)
    return write_simulated(S, router, out)


@inline
def write_told(S: int, out: int) -> int:
    """The rows of a router that is told what happens."""
    n = 0
    for k in range(ld(S, L.H_HIGH)):
        s = slot_at(S, k)
        stage = ld32(s, STAGE)
        if STAGE_PREFILL <= stage <= STAGE_DECODE:
            tokens = ld32(s, L.S_GENERATED)
            prefilled = ld(s, PREFILLED_AT) if stage != STAGE_PREFILL else -1
            first, last = (ld(s, FIRST_AT), ld(s, L.SW_LAST)) if tokens > 0 else (-1, -1)
            n = write_row(S, s, out, n, stage, tokens, ld32(s, NUMBER), prefilled, first, last)
    return n


@inline
def write_simulated(S: int, router: int, out: int) -> int:
    """The rows of a router in the simulator, from where its requests are: of that only what it was told."""
    n = 0
    prefills = ldc(S, L.H_PREFILLS)
    for p in range(prefills):
        e = engine_at(S, p)
        n = write_list(S, router, ld(e, L.E_CHUNKS), out, n)
        n = write_list(S, router, ld(e, L.E_QUEUE), out, n)
    for d in range(ldc(S, L.H_DECODES)):
        e = engine_at(S, prefills + d)
        n = write_batch(S, router, d, e, out, n)
        n = write_list(S, router, ld(e, L.E_CHUNKS), out, n)
        n = write_list(S, router, ld(e, L.E_HOLD), out, n)
        n = write_list(S, router, ld(e, L.E_QUEUE), out, n)
    return n


@inline
def write_list(S: int, router: int, k: int, out: int, n: int) -> int:
    """The rows of the requests in a list that slot k heads: none of them decodes."""
    while k >= 0:
        s = slot_at(S, k)
        place = ld32(s, L.S_PLACE)
        if router_of(place) == router:
            row, tokens = record_at(S, s), ld32(s, L.S_GENERATED)
            prefilled = ld(row, L.R_PREFILL_END)
            stage = IN_PREFILL
            if prefilled >= 0:
                stage = IN_DECODE if place & L.LOCAL != 0 else IN_TRANSFER
            first, last = (ld(row, L.R_FIRST_TOKEN), ld(s, L.SW_LAST)) if tokens > 0 else (-1, -1)
            n = write_row(S, s, out, n, stage, tokens, n, prefilled, first, last)
        k = ld32(s, L.S_NEXT)
    return n


@inline
def write_batch(S: int, router: int, d: int, e: int, out: int, n: int) -> int:
    """The rows of the requests that decode on instance d (row e).

    Tokens come at the ends of steps; who joined with the leap has none from here before the first of them.
    """
    leap = leap_of(S, d)
    step = ld(leap, L.LEAP_NOW)
    made = step - ld(leap, L.LEAP_DONE)
    last = ld(leap, L.LEAP_START) + leap_time(ld(leap, L.LEAP_FIRST), ld(leap, L.LEAP_GROWTH), made)
    batch = ld(e, L.E_BATCH)
    old = ld(e, L.E_OLD) if made == 0 and ld(e, L.E_BUSY) != 0 else batch
    for at in range(batch):
        s = slot_at(S, ld(batch_key(S, d, at), 0) & L.KEY_MASK)
        if router_of(ld32(s, L.S_PLACE)) == router:
            row = record_at(S, s)
            prefilled, first = ld(row, L.R_PREFILL_END), ld(row, L.R_FIRST_TOKEN)
            if at < old:
                tokens = ld32(s, L.S_OUTPUT) - (ld(s, L.SW_FINISH) - step)
                n = write_row(S, s, out, n, IN_DECODE, tokens, n, prefilled, first, last)
            else:
                tokens = ld32(s, L.S_GENERATED)
                first, before = (first, ld(s, L.SW_LAST)) if tokens > 0 else (-1, -1)
                n = write_row(S, s, out, n, IN_TRANSFER, tokens, n, prefilled, first, before)
    return n


@inline
def write_row(
    S: int,
    s: int,
    out: int,
    n: int,
    stage: int,
    tokens: int,
    order: int,
    prefilled: int,
    first: int,
    last: int,
) -> int:
    """Writes row n of the request in slot address s; returns how many there are now."""
    row = out + n * (KNOWN_WORDS * 8)
    given = trace_row(S, ld32(s, L.S_REQUEST))
    st(row, K_PLACE, ld32(s, L.S_PLACE) & _PLACES)
    st(row, K_STAGE, stage)
    st(row, K_PROMPT, ld32(s, L.S_PROMPT))
    st(row, K_PREDICTED, ld32(s, L.S_PREDICTED))
    st(row, K_TOKENS, tokens)
    st(row, K_ORDER, order)
    st(row, K_ARRIVAL, ldc(given, L.T_ARRIVAL))
    st(row, K_PREFILLED, prefilled)
    st(row, K_FIRST, first)
    st(row, K_LAST, last)
    st(row, K_TTFT, ldc(given, L.T_TTFT))
    st(row, K_TPOT, ldc(given, L.T_TPOT))
    return n + 1
