"""KV between instances: reservation, the egress queue, and the release of prefill blocks; and how requests end.

A transfer's end is known when it starts, so it is no event: the slot waits in the decode instance's hold list, and
in the prefill instance's release list, which is sorted by time and applied when that instance next looks.
"""

from __future__ import annotations

from . import layout as L
from . import ledger
from .arithmetic import rarely
from .compile import inline, rare
from .deadlines import move_fate
from .learner import learn
from .memory import copy_words, ld, ld32, ldc, st, st16, st32
from .polls import before_change
from .slots import (
    blocks_of,
    copy_row,
    end_record,
    engine_at,
    prefill_of,
    push_back,
    record_at,
    recycle,
    set_wake,
    slot_at,
    take_slot,
    wake_of,
)


@inline
def reserve(S: int, d: int, e: int, k: int, t: int) -> None:
    """Decode instance d (row e) has reserved blocks for slot k at t: its pull starts."""
    s = slot_at(S, k)
    p = prefill_of(ld32(s, L.S_PLACE))
    source = engine_at(S, p)
    start = max(t, ld(source, L.E_EGRESS))
    blocks = blocks_of(S, ld32(s, L.S_PROMPT))
    served = start + blocks * ldc(ldc(source, L.E_SPEC), L.P_EGRESS)
    end = served + ldc(ldc(S, L.H_T_LATENCY), p * ldc(S, L.H_DECODES) + d)
    st(source, L.E_EGRESS, served)
    st(s, L.SW_TRANSFER, end)
    push_back(S, e, L.E_HOLD, k)
    st(e, L.E_HOLD_TIME, min(ld(e, L.E_HOLD_TIME), end))
    schedule_release(S, source, k, end)
    if ld(source, L.E_BUSY) == 0 and ld(source, L.E_QUEUED) > 0:
        set_wake(S, p, min(wake_of(S, p), end))
    row = record_at(S, s)
    st(row, L.R_RESERVE, t)
    st(row, L.R_TRANSFER_START, start)
    st(row, L.R_TRANSFER_END, end)


@inline
def schedule_release(S: int, source: int, k: int, end: int) -> None:
    """Puts slot k into the release list of prefill row `source`, after those that end no later."""
    tail = ld(source, L.E_RELEASE_TAIL)
    if tail < 0:
        st(source, L.E_RELEASE, k)
        st(source, L.E_RELEASE_TAIL, k)
        st32(slot_at(S, k), L.S_RELEASE, -1)
    elif ld(slot_at(S, tail), L.SW_TRANSFER) <= end:
        st32(slot_at(S, tail), L.S_RELEASE, k)
        st(source, L.E_RELEASE_TAIL, k)
        st32(slot_at(S, k), L.S_RELEASE, -1)
    else:
        insert_release(S, source, k, end)


@rare
def insert_release(S: int, source: int, k: int, end: int) -> None:
    """`schedule_release` for a transfer that ends before one that started earlier."""
    before, here = -1, ld(source, L.E_RELEASE)
    while ld(slot_at(S, here), L.SW_TRANSFER) <= end:
        before, here = here, ld32(slot_at(S, here), L.S_RELEASE)
    st32(slot_at(S, k), L.S_RELEASE, here)
    if before < 0:
        st(source, L.E_RELEASE, k)
    else:
        st32(slot_at(S, before), L.S_RELEASE, k)


@inline
def release(S: int, p: int, source: int, t: int) -> None:
    """Frees the blocks of prefill instance p whose transfers have ended by t."""
    k = ld(source, L.E_RELEASE)
    if k >= 0 and ld(slot_at(S, k), L.SW_TRANSFER) <= t:
        before_change(S, p, source, t)
        free = ld(source, L.E_FREE)
        while k >= 0 and ld(slot_at(S, k), L.SW_TRANSFER) <= t:
            s = slot_at(S, k)
            free += blocks_of(S, ld32(s, L.S_PROMPT))
            after = ld32(s, L.S_RELEASE)
            place = ld32(s, L.S_PLACE)
            st32(s, L.S_PLACE, place | L.RELEASED)
            if rarely(place & L.ENDED != 0):
                recycle(S, k)
            k = after
        st(source, L.E_FREE, free)
        st(source, L.E_RELEASE, k)
        if k < 0:
            st(source, L.E_RELEASE_TAIL, -1)


@inline
def record_end(S: int, s: int, t: int, last: int, generated: int, status: int) -> None:
    """Writes the end of a request into its record."""
    row = end_record(S, s, t)
    st(row, L.R_LAST_TOKEN, last)
    st(row, L.R_END, t)
    st32(row, L.R32_GENERATED, generated)
    st16(row, L.R16_STATUS, status)
    st(S, L.H_ENDED, ld(S, L.H_ENDED) + 1)


@inline
def finish(S: int, k: int, s: int, t: int) -> None:
    """The last token of slot k came out at t; its blocks and ledger rows are settled already."""
    record_end(S, s, t, t, ld32(s, L.S_OUTPUT), 0)
    learn(S, s)
    place = ld32(s, L.S_PLACE)
    if place & L.RELEASED == 0:
        p = prefill_of(place)
        release(S, p, engine_at(S, p), t)  # its transfer has ended, so this takes it off the list
    recycle(S, k)


@rare
def lose(S: int, k: int, t: int, last: int, generated: int, held: int) -> None:
    """Slot k was lost at t with `generated` tokens out: it fails or is routed again.

    Its ledger rows are settled already. `held`: its prefill blocks are still in a release list, so the slot lives on.
    """
    s = slot_at(S, k)
    if ldc(S, L.H_REROUTE) != 0 and generated == 0:
        again = k
        if held != 0:
            again = copy_slot(S, k)
        insert_lost(S, again)
    else:
        record_end(S, s, t, last, generated, 1)
        if held == 0:
            recycle(S, k)
    if held != 0:
        st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | L.ENDED)


@rare
def copy_slot(S: int, k: int) -> int:
    """A second slot for the request of slot k, which it leaves (`loop.is_full` has kept enough free)."""
    copy = take_slot(S)
    copy_words(slot_at(S, copy), slot_at(S, k), L.SLOT_WORDS)
    if ldc(S, L.H_ROWS) != 0:
        copy_row(record_at(S, slot_at(S, copy)), record_at(S, slot_at(S, k)))
    if ldc(S, L.H_FATES) != 0:
        move_fate(S, k, copy)
    return copy


@rare
def insert_lost(S: int, k: int) -> None:
    """Puts slot k among those to be routed again, by request index."""
    request = ld32(slot_at(S, k), L.S_REQUEST)
    before, here = -1, ld(S, L.H_LOST)
    while here >= 0 and ld32(slot_at(S, here), L.S_REQUEST) < request:
        before, here = here, ld32(slot_at(S, here), L.S_NEXT)
    st32(slot_at(S, k), L.S_NEXT, here)
    if before < 0:
        st(S, L.H_LOST, k)
    else:
        st32(slot_at(S, before), L.S_NEXT, k)


@inline
def leave_ledger(S: int, s: int, generated: int, pending: int, in_prefill: int) -> None:
    """Takes a lost request that does not stream out of its router's ledger."""
    if in_prefill != 0:
        ledger.prefill_done(S, s)
    ledger.leaves(S, s, generated, pending)
