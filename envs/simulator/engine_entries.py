"""The compiled functions behind `engine.Engine`: one engine of a block is driven, none of the others moves.

A prefill engine stands beside a decode engine that never runs: prompts that are done pile up in its queue and are taken
out at once. A decode engine stands beside a prefill engine that holds nothing: pulls end when the caller says so.
Nobody reads the router's ledger here, and it is not kept.

What happened is written to `out` as pairs (event, slot), and `marks` holds for every slot where its request is.
"""

from __future__ import annotations

from . import layout as L
from .arithmetic import leap_time, steps_within
from .batch import held_blocks, leave_batch
from .compile import entry, inline
from .decode import decode_pass, end_decode_step, offer, shorten
from .failures import earliest_hold
from .ledger import decode_row, drop_crossing
from .memory import ld, ld32, ldc, st, st32
from .polls import poll
from .prefill import end_prefill_step, prefill_pass
from .slots import (
    batch_key,
    blocks_of,
    engine_at,
    leap_of,
    pop_front,
    push_back,
    record_at,
    recycle,
    remove,
    set_wake,
    slot_at,
    take_slot,
    wake_of,
)
from .transfer import schedule_release

WAITING, RESERVED, CHUNKED, DECODING, HELD = range(5)
"""Where a request is: queued or offered; KV reserved; being prefilled; decoding; KV held after prefill."""

_JOINED, _PREFILL_DONE, _RESERVED, _FIRST_TOKEN, _FINISHED, _PREEMPTED = range(6)

UNKNOWN_PULL = 1 << 58
"""ps (three days) for which a pull is taken to last until its end is known."""


@inline
def write(out: int, n: int, event: int, k: int) -> int:
    """Writes event number n; returns how many there are now."""
    st(out, 2 * n, event)
    st(out, 2 * n + 1, k)
    return n + 1


@entry
def submit(S: int, i: int, prompt: int, output: int, generated: int, local: int, t: int) -> int:
    """Brings a request to engine i at t; returns its slot.

    `generated`: tokens that came out elsewhere. `local`: a decode engine prefills it itself.
    """
    k = take_slot(S)
    s = slot_at(S, k)
    st32(s, L.S_REQUEST, k)
    st32(s, L.S_PROMPT, prompt)
    st32(s, L.S_OUTPUT, output)
    st32(s, L.S_PREDICTED, 0)
    st32(s, L.S_GENERATED, generated)
    st32(s, L.S_CROSS, -1)
    st32(s, L.S_PLACE, (L.LOCAL | L.RELEASED) if ldc(S, L.H_MIXED) != 0 else 0)
    st(s, L.SW_LAST, t)
    row = record_at(S, s)
    st(row, L.R_PREFILL_START, -1)
    st(row, L.R_MAX_STALL, 0)
    st32(row, L.R32_PREEMPTIONS, 0)
    e = engine_at(S, i)
    if i < ldc(S, L.H_PREFILLS):
        push_back(S, e, L.E_QUEUE, k)
        if ld(e, L.E_BUSY) == 0:
            set_wake(S, i, t)
    else:
        if ldc(S, L.H_MIXED) == 0:
            st32(s, L.S_PLACE, (L.LOCAL | L.RELEASED) if local != 0 else L.RELEASED)
        offer(S, i - ldc(S, L.H_PREFILLS), e, k, t)
    return k


@entry
def end_step(S: int, i: int, t: int, marks: int, out: int) -> int:
    """The step of engine i ends at t; returns the number of events."""
    e = engine_at(S, i)
    prefills = ldc(S, L.H_PREFILLS)
    n = 0
    k = ld(e, L.E_CHUNKS)
    while k >= 0:
        s = slot_at(S, k)
        generated = ld32(s, L.S_GENERATED)
        if ld(s, L.SW_FINISH) < ld32(s, L.S_PROMPT) + generated:
            break
        if generated == 0:
            n = write(out, n, _PREFILL_DONE, k)
            if i >= prefills or ldc(S, L.H_FIRST_PREFILL) != 0:
                n = write(out, n, _FIRST_TOKEN, k)
        st(marks, k, HELD if i < prefills else DECODING)
        k = ld32(s, L.S_NEXT)
    st(S, L.H_LOGGED, 0)
    if i < prefills:
        end_prefill_step(S, i, t)
        other = engine_at(S, prefills)
        while ld(other, L.E_QUEUE) >= 0:
            pop_front(S, other, L.E_QUEUE)
    else:
        end_decode_step(S, i - prefills, t)
    for at in range(ld(S, L.H_LOGGED)):
        n = write(out, n, _FINISHED, ld(ldc(S, L.H_LOG), at))
    return n


@entry
def make_pass(S: int, i: int, t: int, marks: int, out: int) -> int:
    """A scheduling pass of engine i at t; returns the number of events."""
    e = engine_at(S, i)
    prefills = ldc(S, L.H_PREFILLS)
    joins = ld(e, L.E_JOINS)
    if i < prefills:
        prefill_pass(S, i, t)
        n = 0
    else:
        decode_pass(S, i - prefills, t)
        n = write_victims(S, e, marks, out)
    k = ld(e, L.E_CHUNKS)
    while k >= 0:
        s = slot_at(S, k)
        mark = ld(marks, k)
        if mark == WAITING or (i >= prefills and ld32(s, L.S_JOIN) >= joins):
            if mark != WAITING:  # preempted, and started again by the repeated pass
                n = write(out, n, _PREEMPTED, k)
            st(marks, k, CHUNKED)
            n = write(out, n, _JOINED, k)
        k = ld32(s, L.S_NEXT)
    if i >= prefills:
        for at in range(ld(e, L.E_OLD), ld(e, L.E_BATCH)):
            k = ld(batch_key(S, i - prefills, at), 0) & L.KEY_MASK
            st(marks, k, DECODING)
            n = write(out, n, _JOINED, k)
        if prefills > 0:
            n = write_reservations(S, e, marks, out, n)
    return n


@inline
def write_victims(S: int, e: int, marks: int, out: int) -> int:
    """Writes who was preempted by the pass that was just made: they stand at the head of the queue."""
    n = 0
    k = ld(e, L.E_QUEUE)
    while k >= 0 and ld(marks, k) != WAITING:
        st(marks, k, WAITING)
        n = write(out, n, _PREEMPTED, k)
        k = ld32(slot_at(S, k), L.S_NEXT)
    return n


@inline
def write_reservations(S: int, e: int, marks: int, out: int, n: int) -> int:
    """Writes whose KV was reserved by the pass that was just made."""
    k = ld(e, L.E_HOLD)
    while k >= 0:
        if ld(marks, k) == WAITING:
            st(marks, k, RESERVED)
            n = write(out, n, _RESERVED, k)
        k = ld32(slot_at(S, k), L.S_NEXT)
    source = engine_at(S, 0)  # it holds nothing
    st(source, L.E_RELEASE, -1)
    st(source, L.E_RELEASE_TAIL, -1)
    return n


@entry
def set_pull_end(S: int, k: int, end: int, t: int) -> None:
    """The pull of slot k, whose blocks are reserved, ends at `end` ≥ t."""
    e = engine_at(S, 1)
    st(slot_at(S, k), L.SW_TRANSFER, end)
    earliest = earliest_hold(S, e)
    st(e, L.E_HOLD_TIME, earliest)
    if ld(e, L.E_BUSY) != 0:
        shorten(S, 0, end)
    elif wake_of(S, 1) > t:
        set_wake(S, 1, earliest)


@entry
def release_held(S: int, k: int, end: int) -> None:
    """The KV that the prefill engine holds for slot k is free at `end`, and the slot is given back then."""
    e = engine_at(S, 0)
    s = slot_at(S, k)
    st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | L.ENDED)
    st(s, L.SW_TRANSFER, end)
    schedule_release(S, e, k, end)
    if ld(e, L.E_BUSY) == 0 and ld(e, L.E_QUEUED) > 0:
        set_wake(S, 0, min(wake_of(S, 0), end))


@entry
def stop_at_boundary(S: int, d: int, t: int) -> None:
    """The leap of decode or mixed instance d ends at its first boundary at or after t."""
    shorten(S, d, t)


@entry
def drop(S: int, i: int, k: int, mark: int, t: int) -> None:
    """Forgets slot k at t, between two steps if it is running."""
    e = engine_at(S, i)
    s = slot_at(S, k)
    d = i - ldc(S, L.H_PREFILLS)
    freed = 0
    if mark == WAITING:
        remove(S, e, L.E_QUEUE, k)
    elif mark == RESERVED:
        remove(S, e, L.E_HOLD, k)
        st(e, L.E_HOLD_TIME, earliest_hold(S, e))
        freed = blocks_of(S, ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED))
    elif mark == CHUNKED:
        remove(S, e, L.E_CHUNKS, k)
        freed = blocks_of(S, ld(s, L.SW_FINISH))
    else:
        freed = held_blocks(S, s, ld(leap_of(S, d), L.LEAP_DONE))
        leave_batch(S, d, e, s)
        drop_crossing(S, s, 0, d, decode_row(S, 0, d))
    st(e, L.E_FREE, ld(e, L.E_FREE) + freed)
    recycle(S, k)
    if ld(e, L.E_BUSY) == 0:
        set_wake(S, i, t)
    elif d >= 0:
        shorten(S, d, t)


@entry
def tokens_out(S: int, d: int, k: int, t: int) -> int:
    """Output tokens of the decoding slot k that are out by t, which lies in the running leap or at its end."""
    s = slot_at(S, k)
    leap = leap_of(S, d)
    x = t - ld(leap, L.LEAP_START)
    made = 0
    if x > 0:
        made = min(steps_within(ld(leap, L.LEAP_FIRST), ld(leap, L.LEAP_GROWTH), x), ld(leap, L.LEAP_STEPS))
    return ld32(s, L.S_OUTPUT) - (ld(s, L.SW_FINISH) - ld(leap, L.LEAP_DONE) - made)


@entry
def next_boundary(S: int, d: int, t: int) -> int:
    """When the first step of the running leap of instance d that ends after t ends; -1 if the leap has ended by t."""
    leap = leap_of(S, d)
    start, first, growth = ld(leap, L.LEAP_START), ld(leap, L.LEAP_FIRST), ld(leap, L.LEAP_GROWTH)
    x = t - start
    k = steps_within(first, growth, x) + 1 if x >= first else 1
    return start + leap_time(first, growth, k) if k <= ld(leap, L.LEAP_STEPS) else -1


@entry
def look(S: int, i: int, out: int) -> None:
    """Writes when engine i wakes, whether it is busy, and of its leap start, first step, growth and steps."""
    st(out, 0, wake_of(S, i))
    st(out, 1, ld(engine_at(S, i), L.E_BUSY))
    if i >= ldc(S, L.H_PREFILLS):
        leap = leap_of(S, i - ldc(S, L.H_PREFILLS))
        st(out, 2, ld(leap, L.LEAP_START))
        st(out, 3, ld(leap, L.LEAP_FIRST))
        st(out, 4, ld(leap, L.LEAP_GROWTH))
        st(out, 5, ld(leap, L.LEAP_STEPS))


@entry
def note_usage(S: int, i: int, t: int) -> None:
    """Brings the poll fields of engine i to what it reports at t."""
    poll(S, i, engine_at(S, i), t)
