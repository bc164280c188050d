"""Instances that are killed, drained and brought back (docs/model.md, "Failures")."""

from __future__ import annotations

import numpy as np

from . import layout as L
from . import ledger
from .arithmetic import steps_within
from .batch import advance, leave_batch
from .compile import inline, rare
from .decode import shorten
from .memory import ld, ld32, ldc, st, st32, stf
from .polls import before_change
from .slots import (
    batch_key,
    blocks_of,
    decode_of,
    engine_at,
    leap_of,
    pop_front,
    prefill_of,
    record_at,
    recycle,
    remove,
    router_of,
    set_wake,
    slot_at,
    wake_of,
)
from .transfer import leave_ledger, lose, release, schedule_release

KILL, DRAIN, RETURN = range(3)


@rare
def apply_events(S: int, t: int) -> None:
    """Applies the entries of the failure schedule that are due at t."""
    table = ldc(S, L.H_T_EVENTS)
    while ld(S, L.H_EVENT_TIME) == t:
        n = ld(S, L.H_EVENT)
        i, action = ldc(table, 3 * n + 1), ldc(table, 3 * n + 2)
        e = engine_at(S, i)
        before_change(S, i, e, t)
        state = ld(e, L.E_STATE)
        if action == KILL and state != L.STATE_DOWN:
            if i < ldc(S, L.H_PREFILLS):
                kill_prefill(S, i, e, t)
            else:
                kill_decode(S, i - ldc(S, L.H_PREFILLS), e, t)
            set_state(S, i, e, L.STATE_DOWN)
        elif action == DRAIN and state == L.STATE_UP:
            set_state(S, i, e, L.STATE_DRAINING)
        elif action == RETURN:
            set_state(S, i, e, L.STATE_UP)
        st(S, L.H_EVENT, n + 1)
        st(S, L.H_EVENT_TIME, ldc(table, 3 * (n + 1)) if n + 1 < ldc(S, L.H_EVENTS) else L.FOREVER)


@rare
def set_state(S: int, i: int, e: int, state: int) -> None:
    """Sets an instance's state, and whether the routers may assign to it."""
    change = int(state == L.STATE_UP) - int(ld(e, L.E_STATE) == L.STATE_UP)
    st(e, L.E_STATE, state)
    mark = 0.0 if state == L.STATE_UP else np.inf
    prefills = ldc(S, L.H_PREFILLS)
    for router in range(ldc(S, L.H_ROUTERS)):
        if i < prefills or prefills == 0:
            stf(ledger.prefill_row(S, router, i), L.PRE_OPEN, mark)
        if i >= prefills:
            stf(ledger.decode_row(S, router, i - prefills), L.DEC_OPEN, mark)
    if i < prefills or prefills == 0:
        st(S, L.H_OPEN_PREFILLS, ld(S, L.H_OPEN_PREFILLS) + change)
    if i >= prefills:
        st(S, L.H_OPEN_DECODES, ld(S, L.H_OPEN_DECODES) + change)


@rare
def kill_prefill(S: int, p: int, e: int, t: int) -> None:
    """Prefill instance p dies at t with all that it has not handed over."""
    release(S, p, e, t)
    for head in (L.E_CHUNKS, L.E_QUEUE):
        while ld(e, head) >= 0:
            k = pop_front(S, e, head)
            leave_ledger(S, slot_at(S, k), 0, 1, 1)
            lose(S, k, t, -1, 0, 0)
    while ld(e, L.E_RELEASE) >= 0:  # in transit, or ended before
        k = ld(e, L.E_RELEASE)
        s = slot_at(S, k)
        st(e, L.E_RELEASE, ld32(s, L.S_RELEASE))
        if ld32(s, L.S_PLACE) & L.ENDED:
            recycle(S, k)
        else:
            undo_reservation(S, k, s, t)
    st(e, L.E_RELEASE_TAIL, -1)
    for d in range(ldc(S, L.H_DECODES)):
        withdraw_offers(S, p, d, t)
    st(e, L.E_FREE, ldc(ldc(e, L.E_SPEC), L.P_BLOCKS))
    st(e, L.E_EGRESS, 0)
    st(e, L.E_BUSY, 0)
    set_wake(S, p, L.FOREVER)


@inline
def lose_prefilled(S: int, k: int, s: int, t: int, held: int) -> None:
    """Loses a request that waits for its transfer or is in transit."""
    generated = ld32(s, L.S_GENERATED)
    leave_ledger(S, s, generated, 1, 0)
    row = record_at(S, s)
    st(row, L.R_TRANSFER_END, -1)
    if ld(row, L.R_TRANSFER_START) > t:
        st(row, L.R_TRANSFER_START, -1)
    lose(S, k, t, ld(s, L.SW_LAST) if generated > 0 else -1, generated, held)


@inline
def look_again(S: int, d: int, e: int, t: int) -> None:
    """Blocks or the queue of instance d changed from outside: it makes a pass as soon as it can."""
    if ld(e, L.E_BUSY) == 0:
        set_wake(S, ldc(S, L.H_PREFILLS) + d, t)
    else:
        shorten(S, d, t)


@rare
def undo_reservation(S: int, k: int, s: int, t: int) -> None:
    """The prefill instance of slot k died while its KV was in transit: the decode side forgets it."""
    d = decode_of(ld32(s, L.S_PLACE))
    i = ldc(S, L.H_PREFILLS) + d
    e = engine_at(S, i)
    before_change(S, i, e, t)
    remove(S, e, L.E_HOLD, k)
    st(e, L.E_HOLD_TIME, earliest_hold(S, e))
    blocks = blocks_of(S, ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED))
    st(e, L.E_FREE, ld(e, L.E_FREE) + blocks)
    lose_prefilled(S, k, s, t, 0)
    look_again(S, d, e, t)


@inline
def earliest_hold(S: int, e: int) -> int:
    """Earliest transfer end in a hold list."""
    earliest = L.FOREVER
    k = ld(e, L.E_HOLD)
    while k >= 0:
        earliest = min(earliest, ld(slot_at(S, k), L.SW_TRANSFER))
        k = ld32(slot_at(S, k), L.S_NEXT)
    return earliest


@rare
def withdraw_offers(S: int, p: int, d: int, t: int) -> None:
    """Takes the offers of the dead prefill instance p out of the queue of decode instance d."""
    i = ldc(S, L.H_PREFILLS) + d
    e = engine_at(S, i)
    k = ld(e, L.E_QUEUE)
    while k >= 0:
        s = slot_at(S, k)
        after = ld32(s, L.S_NEXT)
        place = ld32(s, L.S_PLACE)
        if place & L.LOCAL == 0 and prefill_of(place) == p:
            before_change(S, i, e, t)
            remove(S, e, L.E_QUEUE, k)
            lose_prefilled(S, k, s, t, 0)
            look_again(S, d, e, t)
        k = after


@rare
def kill_decode(S: int, d: int, e: int, t: int) -> None:
    """Decode or mixed instance d dies at t with all that it holds."""
    fresh_from = ld(e, L.E_BATCH)
    if ld(e, L.E_BUSY) != 0:
        x = t - ld(leap_of(S, d), L.LEAP_START)
        made = steps_within(ld(leap_of(S, d), L.LEAP_FIRST), ld(leap_of(S, d), L.LEAP_GROWTH), x)
        if made > 0:
            advance(S, d, e, made)
        else:  # who joined with this leap has got nothing from it
            fresh_from = ld(e, L.E_OLD)
    step, boundary = ld(leap_of(S, d), L.LEAP_DONE), ld(leap_of(S, d), L.LEAP_START)
    while ld(e, L.E_BATCH) > 0:
        at = ld(e, L.E_BATCH) - 1
        k = ld(batch_key(S, d, at), 0) & L.KEY_MASK
        lose_decoding(S, d, e, k, step, boundary, int(at >= fresh_from), t)
    while ld(e, L.E_CHUNKS) >= 0:
        lose_local(S, pop_front(S, e, L.E_CHUNKS), t)
    while ld(e, L.E_HOLD) >= 0:
        k = pop_front(S, e, L.E_HOLD)
        s = slot_at(S, k)
        if ld(s, L.SW_TRANSFER) <= t:
            let_go(S, s, t)
            leave_ledger(S, s, ld32(s, L.S_GENERATED), 1, 0)
            generated = ld32(s, L.S_GENERATED)
            lose(S, k, t, ld(s, L.SW_LAST) if generated > 0 else -1, generated, 0)
        else:
            strand(S, k, s, t, 1)
    while ld(e, L.E_QUEUE) >= 0:
        k = pop_front(S, e, L.E_QUEUE)
        if ld32(slot_at(S, k), L.S_PLACE) & L.LOCAL:
            lose_local(S, k, t)
        else:
            strand(S, k, slot_at(S, k), t, 0)
    st(e, L.E_FREE, ldc(ldc(e, L.E_SPEC), L.P_BLOCKS))
    st(e, L.E_HOLD_TIME, L.FOREVER)
    st(e, L.E_BUSY, 0)
    st(leap_of(S, d), L.LEAP_STEPS, 0)
    set_wake(S, ldc(S, L.H_PREFILLS) + d, L.FOREVER)


@rare
def lose_decoding(S: int, d: int, e: int, k: int, step: int, boundary: int, fresh: int, t: int) -> None:
    """Loses a decoding sequence; `fresh`: it had not made its first step."""
    s = slot_at(S, k)
    generated = ld32(s, L.S_OUTPUT) - (ld(s, L.SW_FINISH) - step)
    stall = leave_batch(S, d, e, s)
    row = record_at(S, s)
    last = boundary
    if fresh != 0:
        stall = 0
        last = ld(s, L.SW_LAST) if generated > 0 else -1
        if generated == 0:
            st(row, L.R_FIRST_TOKEN, -1)
        ledger.bump(ledger.decode_row(S, router_of(ld32(s, L.S_PLACE)), d), L.DEC_FRESH, -1)
    st(row, L.R_MAX_STALL, stall)
    let_go(S, s, t)
    ledger.pauses(S, s, step, generated)
    leave_ledger(S, s, generated, fresh, 0)
    lose(S, k, t, last, generated, 0)


@rare
def lose_local(S: int, k: int, t: int) -> None:
    """Loses a request that is or was to be prefilled on the dead instance."""
    s = slot_at(S, k)
    generated = ld32(s, L.S_GENERATED)
    new = int(generated == 0)
    let_go(S, s, t)
    leave_ledger(S, s, generated, new, new)
    lose(S, k, t, -1 if new else ld(s, L.SW_LAST), generated, 0)


@inline
def let_go(S: int, s: int, t: int) -> None:
    """Makes sure that a transferred request is off its prefill instance's release list."""
    place = ld32(s, L.S_PLACE)
    if place & L.RELEASED == 0:
        release(S, prefill_of(place), engine_at(S, prefill_of(place)), t)


@rare
def strand(S: int, k: int, s: int, t: int, in_transit: int) -> None:
    """The decode instance of slot k died before its transfer ended: its prefill blocks stay until the lease ends."""
    p = prefill_of(ld32(s, L.S_PLACE))
    source = engine_at(S, p)
    before_change(S, p, source, t)
    if in_transit != 0:
        unlink_release(S, source, k)
    end = max(t, ld(s, L.SW_FINISH) + ldc(ldc(source, L.E_SPEC), L.P_LEASE))
    st(s, L.SW_TRANSFER, end)
    schedule_release(S, source, k, end)
    if ld(source, L.E_BUSY) == 0 and ld(source, L.E_QUEUED) > 0:
        first = ld(slot_at(S, ld(source, L.E_RELEASE)), L.SW_TRANSFER)
        set_wake(S, p, min(wake_of(S, p), max(t, first)))  # what ended while it was busy is not released yet
    lose_prefilled(S, k, s, t, 1)


@rare
def unlink_release(S: int, source: int, k: int) -> None:
    """Takes slot k out of a release list."""
    before, here = -1, ld(source, L.E_RELEASE)
    while here != k:
        before, here = here, ld32(slot_at(S, here), L.S_RELEASE)
    after = ld32(slot_at(S, k), L.S_RELEASE)
    if before < 0:
        st(source, L.E_RELEASE, after)
    else:
        st32(slot_at(S, before), L.S_RELEASE, after)
    if after < 0:
        st(source, L.E_RELEASE_TAIL, before)
