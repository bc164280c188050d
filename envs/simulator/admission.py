"""Admissions: a request arrives, a router decides, the request is sent."""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from . import ledger
from .arithmetic import rarely, udiv
from .compile import inline
from .decode import offer
from .learner import predict
from .memory import ld, ld32, ldc, ldc32, st, st16, st32, stf, store_cells, store_words
from .polls import before_change, refresh
from .slots import (
    end_record,
    engine_at,
    push_back,
    record_at,
    recycle,
    router_of,
    set_wake,
    slot_at,
    take_slot,
    trace_row,
)

PREFILL_COLUMNS = 7
DECODE_COLUMNS = 11


@inline
def show_next_arrival(S: int) -> None:
    """Looks up when the next request of the trace arrives, and which poll its decision will see."""
    request = ld(S, L.H_NEXT)
    t = L.FOREVER
    if request < ldc(S, L.H_REQUESTS):
        t = ldc(trace_row(S, request), L.T_ARRIVAL)
        if ldc(S, L.H_STRICT) == 0:
            see_poll(S, t)
    st(S, L.H_ARRIVAL, t)


@inline
def see_poll(S: int, t: int) -> None:
    """The next decision is made at t or later: it sees no poll before ⌊t / interval⌋·interval."""
    interval = ldc(S, L.H_POLL)
    st(S, L.H_VISIBLE, udiv(t, interval) * interval)


@inline
def arrive(S: int, t: int) -> int:
    """A lost request, else the next of the trace, arrives at t; 1 if it awaits a decision, 0 if it was rejected."""
    k = ld(S, L.H_LOST)
    again = k >= 0
    if rarely(again):
        st(S, L.H_LOST, ld32(slot_at(S, k), L.S_NEXT))
    else:
        k = take_slot(S)
    s = slot_at(S, k)
    if rarely(again):
        row = record_at(S, s)
        st32(row, L.R32_REROUTES, ld32(row, L.R32_REROUTES) + 1)
    else:
        request = ld(S, L.H_NEXT)
        st(S, L.H_NEXT, request + 1)
        st32(s, L.S_REQUEST, request)
        st32(s, L.S_PROMPT, ldc32(trace_row(S, request), L.T32_PROMPT))
        st32(s, L.S_OUTPUT, ldc32(trace_row(S, request), L.T32_OUTPUT))
        row = record_at(S, s)
        st32(row, L.R32_PREEMPTIONS, 0)
        st32(row, L.R32_REROUTES, 0)
        st16(row, L.R16_PREFILL, 0)
        st16(row, L.R16_DECODE, 0)
    return ask(S, k, s, row, t)


@inline
def ask(S: int, k: int, s: int, row: int, t: int) -> int:
    """Slot k needs a decision at t: what its router may know is brought up to date."""
    request = ld32(s, L.S_REQUEST)
    who = ldc32(trace_row(S, request), L.T32_WHO)
    router = who & L.ROUTER_MASK
    st32(s, L.S_PLACE, who << L.ROUTER_SHIFT)
    st32(s, L.S_GENERATED, 0)
    st32(s, L.S_CROSS, -1)
    st(row, L.R_ARRIVAL, ldc(trace_row(S, request), L.T_ARRIVAL))
    V.store(row, L.R_PREFILL_START, V.spread(-1))  # all times up to the end
    st(row, L.R_MAX_STALL, 0)
    st32(row, L.R32_GENERATED, 0)
    st16(row, L.R16_ROUTER, router)
    st16(row, L.R16_STATUS, 0)
    if rarely(ld(S, L.H_OPEN_PREFILLS) == 0 or ld(S, L.H_OPEN_DECODES) == 0):
        reject(S, k, t)
        show_next_arrival(S)
        return 0
    predicted = predict(S, router, request)
    st32(s, L.S_PREDICTED, predicted)
    st32(row, L.R32_PREDICTED, predicted)
    ledger.sync(S, router, t)
    st(S, L.H_PENDING, k)
    return 1


@inline
def reject(S: int, k: int, t: int) -> None:
    """No instance may be assigned: the request fails without a decision."""
    row = end_record(S, slot_at(S, k), t)
    st32(row, L.R32_PREDICTED, -1)
    st16(row, L.R16_PREFILL, -1)
    st16(row, L.R16_DECODE, -1)
    st16(row, L.R16_STATUS, 2)
    st(row, L.R_END, t)
    st(S, L.H_ENDED, ld(S, L.H_ENDED) + 1)
    recycle(S, k)


@inline
def send(S: int, p: int, d: int, probability: float) -> None:
    """The pending request goes to prefill instance p and decode instance d (the same mixed instance twice)."""
    k = ld(S, L.H_PENDING)
    t = ld(S, L.H_NOW)
    st(S, L.H_PENDING, -1)
    s = slot_at(S, k)
    place = ld32(s, L.S_PLACE) | p | (d << L.PLACE_BITS)
    row = record_at(S, s)
    st16(row, L.R16_PREFILL, p)
    st16(row, L.R16_DECODE, d)
    if ldc(S, L.H_DECISION_LOG) != 0:
        log_decision(S, s, router_of(place), p, d, probability)
    st(S, L.H_DECISIONS, ld(S, L.H_DECISIONS) + 1)
    st(S, L.H_LAST + router_of(place), t)
    if rarely(ldc(S, L.H_MIXED) != 0):
        st32(s, L.S_PLACE, place | L.LOCAL | L.RELEASED)
        ledger.admitted(S, s)
        offer(S, d, engine_at(S, d), k, t)
    else:
        st32(s, L.S_PLACE, place)
        ledger.admitted(S, s)
        e = engine_at(S, p)
        before_change(S, p, e, t)
        push_back(S, e, L.E_QUEUE, k)
        if ld(e, L.E_BUSY) == 0:
            set_wake(S, p, t)
    show_next_arrival(S)


@inline
def log_decision(S: int, s: int, router: int, p: int, d: int, probability: float) -> None:
    """Notes what the router saw of the pair that it chose (envs/records.py, DECISION)."""
    row = ldc(S, L.H_DECISION_LOG) + ld(S, L.H_DECISIONS) * (L.DECISION_WORDS * 8)
    st(row, L.D_TIME, ld(S, L.H_NOW))
    st(row, L.D_POLL, ld(S, L.H_VISIBLE))
    st32(row, L.D32_REQUEST, ld32(s, L.S_REQUEST))
    st32(row, L.D32_PREDICTED, ld32(s, L.S_PREDICTED))
    store_cells(row + L.D32_VIEW * 4, prefill_view(S, router, p) + decode_view(S, router, d))
    stf(row, L.D_PROBABILITY_WORD, probability)
    st32(row, L.D32_PREFILL, p)
    st32(row, L.D32_DECODE, d)


@inline
def write_views(S: int, router: int, prefill_out: int, decode_out: int) -> None:
    """Writes a router's PREFILL_VIEW and DECODE_VIEW rows as int64, at the last sync."""
    for p in range(ldc(S, L.H_ROUTED)):
        store_words(prefill_out + p * (PREFILL_COLUMNS * 8), prefill_view(S, router, p))
    for d in range(ldc(S, L.H_DECODES)):
        store_words(decode_out + d * (DECODE_COLUMNS * 8), decode_view(S, router, d))


@inline
def prefill_view(S: int, router: int, p: int) -> tuple[int, ...]:
    """PREFILL_VIEW (envs/records.py) of prefill row p, at the last sync."""
    row = ledger.prefill_row(S, router, p)
    return (
        ld(row, L.PRE_QUEUED),
        ld(row, L.PRE_TOKENS),
        ld(row, L.PRE_STRICT),
        *polled_view(S, p),
    )


@inline
def decode_view(S: int, router: int, d: int) -> tuple[int, ...]:
    """DECODE_VIEW (envs/records.py) of decode row d, at the last sync."""
    row = ledger.decode_row(S, router, d)
    return (
        ld(row, L.DEC_IN_FLIGHT),
        ld(row, L.DEC_PENDING),
        ld(row, L.DEC_COMMITTED),
        ld(row, L.DEC_OUTPUT),
        ledger.remaining_output(S, d, row),
        ledger.context(S, d, row),
        ld(row, L.DEC_STRICT),
        *polled_view(S, ldc(S, L.H_PREFILLS) + d),
    )


@inline
def polled_view(S: int, i: int) -> tuple[int, int, int, int]:
    """The polled columns of engine i (used, running, waiting), and whether it may be assigned."""
    e = engine_at(S, i)
    refresh(S, i, e)
    up = int(ld(e, L.E_STATE) == L.STATE_UP)
    return ld(e, L.E_POLL_USED), ld(e, L.E_POLL_RUNNING), ld(e, L.E_POLL_WAITING), up
