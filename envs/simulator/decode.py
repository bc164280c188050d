"""A decode or mixed instance: offers, joins, leaps of decode steps, local prefill, preemption."""

from __future__ import annotations

from . import layout as L
from . import ledger
from .arithmetic import leap_time, rarely, steps_within
from .batch import advance, first_overflow, first_stall, growth_at, held_blocks, join_batch, leave_batch
from .compile import inline, rare
from .memory import ld, ld32, ldc, st, st32
from .polls import before_change
from .slots import (
    batch_key,
    blocks_of,
    engine_at,
    leap_of,
    pop_front,
    push_back,
    push_front,
    record_at,
    router_of,
    set_wake,
    slot_at,
)
from .transfer import finish, reserve

_NEVER_STEPS = 1 << 62
"""First step of an idle engine's leap: longer than any time, so that it has made none."""


@inline
def offer(S: int, d: int, e: int, k: int, t: int) -> None:
    """Slot k comes to the waiting queue of instance d (row e) at t."""
    i = ldc(S, L.H_PREFILLS) + d
    before_change(S, i, e, t)
    first = ld(e, L.E_QUEUED) == 0
    push_back(S, e, L.E_QUEUE, k)
    if ld(e, L.E_BUSY) == 0:
        set_wake(S, i, t)
    elif first and ld(e, L.E_BATCH) < ldc(ldc(e, L.E_SPEC), L.P_SEQS):  # a blocked head cannot unblock within a leap
        shorten(S, d, t)


@inline
def shorten(S: int, d: int, t: int) -> None:
    """Ends the leap of instance d at its first boundary at or after t."""
    steps = ld(leap_of(S, d), L.LEAP_STEPS)
    if steps > 1:
        start = ld(leap_of(S, d), L.LEAP_START)
        first, growth = ld(leap_of(S, d), L.LEAP_FIRST), ld(leap_of(S, d), L.LEAP_GROWTH)
        fewer = boundary_at(first, growth, t - start)
        if fewer < steps:
            st(leap_of(S, d), L.LEAP_STEPS, fewer)
            set_wake(S, ldc(S, L.H_PREFILLS) + d, start + leap_time(first, growth, fewer))


@inline
def boundary_at(first: int, growth: int, x: int) -> int:
    """Smallest k ≥ 1 with T(k) ≥ x."""
    return 1 if x <= first else steps_within(first, growth, x - 1) + 1


@inline
def decode_pass(S: int, d: int, t: int) -> None:
    """Scheduling pass of decode or mixed instance d at t (after `before_change`)."""
    e = engine_at(S, ldc(S, L.H_PREFILLS) + d)
    spec = ldc(e, L.E_SPEC)
    step = ld(leap_of(S, d), L.LEAP_DONE)
    preempted = make_room(S, d, e, step, t)
    batch = ld(e, L.E_BATCH)
    budget = ldc(spec, L.P_BUDGET) - batch
    tokens = 0
    squares = 0
    if rarely(ld(e, L.E_CHUNKED) > 0):  # the one that is partly prefilled goes on
        s = slot_at(S, ld(e, L.E_CHUNKS))
        done = ld(s, L.SW_FINISH)
        tokens = next_chunk(s, budget)
        st(s, L.SW_FINISH, done + tokens)
        squares = (2 * done + tokens) * tokens
        budget -= tokens
    st(e, L.E_OLD, batch)
    if not (preempted and batch + ld(e, L.E_CHUNKED) > 0):  # a pass that preempted admits nothing, unless repeated
        if ld(e, L.E_HOLD_TIME) <= t:
            budget = join_arrived(S, d, e, step, t, budget)
        if ld(e, L.E_QUEUED) > 0:
            added, added_squares = admit_waiting(S, d, e, t, budget)
            tokens += added
            squares += added_squares
    plan(S, d, e, t, tokens, squares, preempted)


@inline
def next_chunk(s: int, budget: int) -> int:
    """Tokens that the sequence in slot address s prefills next."""
    return min(ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED) - ld(s, L.SW_FINISH), budget)


@inline
def make_room(S: int, d: int, e: int, step: int, t: int) -> int:
    """Takes the blocks that the running sequences need for their next step; 1 if some had to be preempted."""
    preempted = 0
    while True:
        need = growth_at(S, d, step + 1)
        if rarely(ld(e, L.E_CHUNKED) > 0):
            s = slot_at(S, ld(e, L.E_CHUNKS))
            done = ld(s, L.SW_FINISH)
            chunk = next_chunk(s, ldc(ldc(e, L.E_SPEC), L.P_BUDGET) - ld(e, L.E_BATCH))
            need += blocks_of(S, done + chunk) - blocks_of(S, done)
        free = ld(e, L.E_FREE)
        if rarely(need > free):
            preempt_newest(S, d, e, step, t)
            preempted = 1
        else:
            st(e, L.E_FREE, free - need)
            return preempted


@rare
def preempt_newest(S: int, d: int, e: int, step: int, t: int) -> None:
    """Preempts the sequence that joined running last; it goes to the head of the queue."""
    if ld(e, L.E_CHUNKED) > 0:  # a partly prefilled sequence is always the newest
        k = pop_front(S, e, L.E_CHUNKS)
        s = slot_at(S, k)
        freed = blocks_of(S, ld(s, L.SW_FINISH))
    else:
        k = newest(S, d, e)
        s = slot_at(S, k)
        freed = held_blocks(S, s, step)
        suspend(S, d, e, s, step, t)
    st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | L.LOCAL)
    st(e, L.E_FREE, ld(e, L.E_FREE) + freed)
    push_front(S, e, L.E_QUEUE, k)
    row = record_at(S, s)
    st32(row, L.R32_PREEMPTIONS, ld32(row, L.R32_PREEMPTIONS) + 1)


@inline
def newest(S: int, d: int, e: int) -> int:
    """Slot of the decoding sequence that joined running last."""
    found, latest = -1, -1
    for at in range(ld(e, L.E_BATCH)):
        k = ld(batch_key(S, d, at), 0) & L.KEY_MASK
        joined = ld32(slot_at(S, k), L.S_JOIN)
        if joined > latest:
            found, latest = k, joined
    return found


@inline
def suspend(S: int, d: int, e: int, s: int, step: int, t: int) -> None:
    """A decoding sequence stops after `step`, which ended at t: its tokens and stall are written down."""
    generated = ld32(s, L.S_OUTPUT) - (ld(s, L.SW_FINISH) - step)
    stall = leave_batch(S, d, e, s)
    st32(s, L.S_GENERATED, generated)
    st(s, L.SW_LAST, t)
    st(record_at(S, s), L.R_MAX_STALL, stall)
    ledger.pauses(S, s, step, generated)


@inline
def join_arrived(S: int, d: int, e: int, step: int, t: int, budget: int) -> int:
    """Requests whose KV has arrived join, in the order of their reservation; returns the budget left."""
    running = ld(e, L.E_BATCH) + ld(e, L.E_CHUNKED)
    room = min(ldc(ldc(e, L.E_SPEC), L.P_SEQS) - running, budget)
    before, k = -1, ld(e, L.E_HOLD)
    earliest = L.FOREVER
    held = ld(e, L.E_HELD)
    while k >= 0:
        s = slot_at(S, k)
        after = ld32(s, L.S_NEXT)
        end = ld(s, L.SW_TRANSFER)
        if end <= t and room > 0:
            if before < 0:
                st(e, L.E_HOLD, after)
            else:
                st32(slot_at(S, before), L.S_NEXT, after)
            if after < 0:
                st(e, L.E_HOLD_TAIL, before)
            held -= 1
            room -= 1
            budget -= 1
            join_transferred(S, d, e, k, s, step)
        else:
            before = k
            earliest = min(earliest, end)
        k = after
    st(e, L.E_HELD, held)
    st(e, L.E_HOLD_TIME, earliest)
    return budget


@inline
def join_transferred(S: int, d: int, e: int, k: int, s: int, step: int) -> None:
    """Slot k, its KV pulled, decodes from the next step on."""
    finish_step = step + ld32(s, L.S_OUTPUT) - ld32(s, L.S_GENERATED)
    join_batch(S, d, e, k, s, finish_step, 0)
    number_join(e, s)
    ledger.streams(S, k, s, step, finish_step)
    ledger.bump(ledger.decode_row(S, router_of(ld32(s, L.S_PLACE)), d), L.DEC_FRESH, 1)


@inline
def number_join(e: int, s: int) -> None:
    """Notes that the sequence in slot address s is the newest to join running."""
    st32(s, L.S_JOIN, ld(e, L.E_JOINS))
    st(e, L.E_JOINS, ld(e, L.E_JOINS) + 1)


@inline
def admit_waiting(S: int, d: int, e: int, t: int, budget: int) -> tuple[int, int]:
    """Serves the waiting queue; returns the prefill tokens and squares that it adds to the step."""
    limit = ldc(ldc(e, L.E_SPEC), L.P_SEQS)
    tokens = 0
    squares = 0
    free = ld(e, L.E_FREE)
    while budget > 0 and ld(e, L.E_QUEUED) > 0 and ld(e, L.E_BATCH) + ld(e, L.E_CHUNKED) < limit:
        s = slot_at(S, ld(e, L.E_QUEUE))
        local = ld32(s, L.S_PLACE) & L.LOCAL
        known = ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED)
        if blocks_of(S, known) > free:
            break
        k = pop_front(S, e, L.E_QUEUE)
        if local == 0:
            free -= blocks_of(S, known)
            reserve(S, d, e, k, t)
        else:
            chunk = min(known, budget)
            free -= blocks_of(S, chunk)
            st(s, L.SW_FINISH, chunk)
            push_back(S, e, L.E_CHUNKS, k)
            number_join(e, s)
            if ld32(s, L.S_GENERATED) == 0 and ld(record_at(S, s), L.R_PREFILL_START) < 0:
                st(record_at(S, s), L.R_PREFILL_START, t)
            tokens += chunk
            squares += chunk * chunk
            budget -= chunk
    st(e, L.E_FREE, free)
    return tokens, squares


@inline
def plan(S: int, d: int, e: int, t: int, tokens: int, squares: int, preempted: int) -> None:
    """Starts the next leap of instance d at t: as many steps as nothing but token counts can change."""
    i = ldc(S, L.H_PREFILLS) + d
    spec = ldc(e, L.E_SPEC)
    batch = ld(e, L.E_BATCH)
    step = ld(leap_of(S, d), L.LEAP_DONE)
    first = ldc(ldc(spec, L.P_BATCH), batch) + ldc(spec, L.P_CONTEXT) * (ld(e, L.E_BASE) + batch * step)
    growth = ldc(spec, L.P_CONTEXT) * batch
    steps = 1
    wake = t
    if rarely(tokens > 0):
        base = ldc(spec, L.P_BASE_MIXED) if batch > 0 else ldc(spec, L.P_BASE_PREFILL)
        first += base + ldc(spec, L.P_TOKEN) * tokens + ldc(spec, L.P_SQUARE) * squares
        wake = t + first
    elif batch > 0:
        first += ldc(spec, L.P_BASE_DECODE)
        if preempted == 0:
            steps = (ld(e, L.E_NEXT_FINISH) >> L.KEY_SHIFT) - step
            steps = first_overflow(S, d, batch, ld(e, L.E_FREE), step + 1, steps)
            if ld(e, L.E_HELD) > 0 and batch < ldc(spec, L.P_SEQS):
                arrives = ld(e, L.E_HOLD_TIME) - t
                if leap_time(first, growth, steps) > arrives:
                    steps = min(steps, boundary_at(first, growth, arrives))
        wake = t + leap_time(first, growth, steps)
    else:  # idle until a transfer ends
        first, steps = _NEVER_STEPS, 0
        wake = ld(e, L.E_HOLD_TIME)
    st(e, L.E_BUSY, min(steps, 1))
    st(leap_of(S, d), L.LEAP_START, t)
    st(leap_of(S, d), L.LEAP_FIRST, first)
    st(leap_of(S, d), L.LEAP_GROWTH, growth)
    st(leap_of(S, d), L.LEAP_STEPS, steps)
    set_wake(S, i, wake)
    first_tokens(S, d, e, t + first)


@inline
def first_tokens(S: int, d: int, e: int, t: int) -> None:
    """The requests that joined with this leap get their first token here at t, when its first step ends."""
    for at in range(ld(e, L.E_OLD), ld(e, L.E_BATCH)):
        own = batch_key(S, d, at)
        s = slot_at(S, ld(own, 0) & L.KEY_MASK)
        st(own, L.STRIP, first_stall(s, t))
        if ld32(s, L.S_GENERATED) == 0:
            st(record_at(S, s), L.R_FIRST_TOKEN, t)


@inline
def end_decode_step(S: int, d: int, t: int) -> None:
    """The leap of instance d ends at t (after `before_change`): sequences finish, local prefills emit a token."""
    e = engine_at(S, ldc(S, L.H_PREFILLS) + d)
    st(e, L.E_BUSY, 0)
    advance(S, d, e, ld(leap_of(S, d), L.LEAP_STEPS))
    step = ld(leap_of(S, d), L.LEAP_DONE)
    while (ld(e, L.E_NEXT_FINISH) >> L.KEY_SHIFT) == step:
        k = ld(e, L.E_NEXT_FINISH) & L.KEY_MASK
        s = slot_at(S, k)
        st(e, L.E_FREE, ld(e, L.E_FREE) + held_blocks(S, s, step))
        st(record_at(S, s), L.R_MAX_STALL, leave_batch(S, d, e, s))
        ledger.finished(S, s, step)
        finish(S, k, s, t)
    while rarely(ld(e, L.E_CHUNKS) >= 0):
        s = slot_at(S, ld(e, L.E_CHUNKS))
        if ld(s, L.SW_FINISH) < ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED):
            break
        complete_local(S, d, e, pop_front(S, e, L.E_CHUNKS), step, t)


@inline
def complete_local(S: int, d: int, e: int, k: int, step: int, t: int) -> None:
    """A local prefill of slot k ended with `step` at t: it emits the next token."""
    s = slot_at(S, k)
    row = record_at(S, s)
    before = ld32(s, L.S_GENERATED)
    stall = 0
    if before == 0:
        st(row, L.R_PREFILL_END, t)
        st(row, L.R_FIRST_TOKEN, t)
        ledger.prefill_done(S, s)
        ledger.first_token(S, s)
    else:
        stall = max(ld(row, L.R_MAX_STALL), t - ld(s, L.SW_LAST))
        st(row, L.R_MAX_STALL, stall)
    ledger.tokens(S, s, before, 1)
    st32(s, L.S_GENERATED, before + 1)
    output = ld32(s, L.S_OUTPUT)
    if before + 1 == output:
        st(e, L.E_FREE, ld(e, L.E_FREE) + blocks_of(S, ld32(s, L.S_PROMPT) + before))
        ledger.leaves(S, s, output, 0)
        finish(S, k, s, t)
    else:
        finish_step = step + output - before - 1
        join_batch(S, d, e, k, s, finish_step, stall)
        ledger.streams(S, k, s, step, finish_step)
