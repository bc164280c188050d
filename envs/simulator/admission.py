"""Admissions: a request arrives, a router decides, the request is sent."""

from __future__ import annotations

import numpy as np

from . import layout as L
from . import ledger
from .arithmetic import udiv
from .compile import inline
from .decode import offer
from .learner import predict
from .memory import ld, ld8, ld32, st, st16, st32, stf
from .polls import before_change, refresh
from .slots import (
    engine_at,
    push_back,
    record_at,
    recycle,
    router_of,
    set_wake,
    slot_at,
    take_slot,
)

_PREFILL_COLUMNS = 7
_DECODE_COLUMNS = 11


@inline
def show_next_arrival(S: int) -> None:
    """Looks up when the next request of the trace arrives, and which poll its decision will see."""
    request = ld(S, L.H_NEXT)
    t = L.FOREVER
    if request < ld(S, L.H_REQUESTS):
        t = ld(ld(S, L.H_T_ARRIVAL), request)
        if ld(S, L.H_STRICT) == 0:
            see_poll(S, t)
    st(S, L.H_ARRIVAL, t)


@inline
def see_poll(S: int, t: int) -> None:
    """The next decision is made at t or later: it sees no poll before ⌊t / interval⌋·interval."""
    interval = ld(S, L.H_POLL)
    st(S, L.H_VISIBLE, udiv(t, interval) * interval)


@inline
def arrive(S: int, t: int) -> int:
    """The next request of the trace arrives at t; 1 if it awaits a decision, 0 if it was rejected."""
    request = ld(S, L.H_NEXT)
    st(S, L.H_NEXT, request + 1)
    k = take_slot(S)
    s = slot_at(S, k)
    st32(s, L.S_REQUEST, request)
    st32(s, L.S_PROMPT, ld32(ld(S, L.H_T_PROMPT), request))
    st32(s, L.S_OUTPUT, ld32(ld(S, L.H_T_OUTPUT), request))
    row = record_at(S, s)
    st32(row, L.R32_PREEMPTIONS, 0)
    st32(row, L.R32_REROUTES, 0)
    return ask(S, k, t)


@inline
def arrive_again(S: int, t: int) -> int:
    """The first of the lost requests is routed again at t; 1 if it awaits a decision, 0 if it was rejected."""
    k = ld(S, L.H_LOST)
    s = slot_at(S, k)
    st(S, L.H_LOST, ld32(s, L.S_NEXT))
    row = record_at(S, s)
    st32(row, L.R32_REROUTES, ld32(row, L.R32_REROUTES) + 1)
    return ask(S, k, t)


@inline
def ask(S: int, k: int, t: int) -> int:
    """Slot k needs a decision at t: what its router may know is brought up to date."""
    s = slot_at(S, k)
    request = ld32(s, L.S_REQUEST)
    router = request - udiv(request, ld(S, L.H_ROUTERS)) * ld(S, L.H_ROUTERS)
    loose = ld8(ld(S, L.H_T_SLO), request)
    st32(s, L.S_PLACE, (router << L.ROUTER_SHIFT) | loose * L.LOOSE_FLAG)
    st32(s, L.S_GENERATED, 0)
    st32(s, L.S_CROSS, -1)
    row = record_at(S, s)
    st(row, L.R_ARRIVAL, ld(ld(S, L.H_T_ARRIVAL), request))
    for word in range(L.R_PREFILL_START, L.R_MAX_STALL):
        st(row, word, -1)
    st(row, L.R_MAX_STALL, 0)
    st32(row, L.R32_GENERATED, 0)
    st16(row, L.R16_ROUTER, router)
    st16(row, L.R16_STATUS, 0)
    if ld(S, L.H_OPEN_PREFILLS) == 0 or ld(S, L.H_OPEN_DECODES) == 0:
        reject(S, k, row, t)
        return 0
    predicted = predict(S, router, request)
    st32(s, L.S_PREDICTED, predicted)
    st32(row, L.R32_PREDICTED, predicted)
    ledger.sync(S, router, t)
    st(S, L.H_PENDING, k)
    return 1


@inline
def reject(S: int, k: int, row: int, t: int) -> None:
    """No instance may be assigned: the request fails without a decision."""
    st32(row, L.R32_PREDICTED, -1)
    st16(row, L.R16_PREFILL, -1)
    st16(row, L.R16_DECODE, -1)
    st16(row, L.R16_STATUS, 2)
    st(row, L.R_END, t)
    st(S, L.H_ENDED, ld(S, L.H_ENDED) + 1)
    log = ld(S, L.H_LOG)
    if log != 0:
        st(log, ld(S, L.H_LOGGED), ld32(slot_at(S, k), L.S_REQUEST))
        st(S, L.H_LOGGED, ld(S, L.H_LOGGED) + 1)
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
    if ld(S, L.H_DECISION_LOG) != 0:
        log_decision(S, s, router_of(place), p, d, probability)
    st(S, L.H_DECISIONS, ld(S, L.H_DECISIONS) + 1)
    if ld(S, L.H_MIXED) != 0:
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
    row = ld(S, L.H_DECISION_LOG) + ld(S, L.H_DECISIONS) * (L.DECISION_WORDS * 8)
    st(row, L.D_TIME, ld(S, L.H_NOW))
    st(row, L.D_POLL, ld(S, L.H_VISIBLE))
    st32(row, L.D32_REQUEST, ld32(s, L.S_REQUEST))
    st32(row, L.D32_PREDICTED, ld32(s, L.S_PREDICTED))
    for column in range(_PREFILL_COLUMNS):
        st32(row, L.D32_PREFILL_VIEW + column, prefill_seen(S, router, p, column))
    for column in range(_DECODE_COLUMNS):
        st32(row, L.D32_DECODE_VIEW + column, decode_seen(S, router, d, column))
    stf(row, L.D_PROBABILITY_WORD, probability)


@inline
def prefill_seen(S: int, router: int, p: int, column: int) -> int:
    """One column of PREFILL_VIEW (envs/records.py) of prefill row p, at the last sync."""
    e = engine_at(S, p)
    if column == 0:
        return ld(ledger.prefill_row(S, router, L.PRE_QUEUED), p)
    if column == 1:
        return ld(ledger.prefill_row(S, router, L.PRE_TOKENS), p)
    if column == 2:
        return ld(ledger.prefill_row(S, router, L.PRE_STRICT), p)
    return polled(S, p, e, column - 3)


@inline
def decode_seen(S: int, router: int, d: int, column: int) -> int:
    """One column of DECODE_VIEW (envs/records.py) of decode row d, at the last sync."""
    i = ld(S, L.H_PREFILLS) + d
    e = engine_at(S, i)
    if column == 0:
        return ld(ledger.decode_row(S, router, L.DEC_IN_FLIGHT), d)
    if column == 1:
        return ld(ledger.decode_row(S, router, L.DEC_PENDING), d)
    if column == 2:
        return ld(ledger.decode_row(S, router, L.DEC_COMMITTED), d)
    if column == 3:
        return ld(ledger.decode_row(S, router, L.DEC_OUTPUT), d)
    if column == 4:
        return ledger.remaining_output(S, router, d)
    if column == 5:
        return ledger.context(S, router, d)
    if column == 6:
        return ld(ledger.decode_row(S, router, L.DEC_STRICT), d)
    return polled(S, i, e, column - 7)


@inline
def polled(S: int, i: int, e: int, column: int) -> int:
    """Polled column of engine i: used, running, waiting; or whether it may be assigned."""
    refresh(S, i, e)
    if column == 0:
        return ld(e, L.E_POLL_USED)
    if column == 1:
        return ld(e, L.E_POLL_RUNNING)
    if column == 2:
        return ld(e, L.E_POLL_WAITING)
    return np.int64(ld(e, L.E_STATE) == L.STATE_UP)
