"""A prefill instance: prompts in, held KV and offers out."""

from __future__ import annotations

from . import layout as L
from . import ledger
from .arithmetic import rarely
from .compile import inline
from .decode import offer
from .memory import ld, ld32, ldc, st, st32
from .slots import blocks_of, decode_of, engine_at, pop_front, push_back, record_at, set_wake, slot_at
from .transfer import finish, leave_ledger, lose, release, schedule_release


@inline
def prefill_pass(S: int, p: int, t: int) -> None:
    """Scheduling pass of prefill instance p at t (after `before_change`)."""
    e = engine_at(S, p)
    spec = ldc(e, L.E_SPEC)
    release(S, p, e, t)
    free = ld(e, L.E_FREE)
    budget = ldc(spec, L.P_BUDGET)
    tokens = 0
    squares = 0
    k = ld(e, L.E_CHUNKS)
    if k >= 0:  # the one that is partly prefilled goes on
        s = slot_at(S, k)
        done = ld(s, L.SW_FINISH)
        chunk = min(ld32(s, L.S_PROMPT) - done, budget)
        free -= blocks_of(S, done + chunk) - blocks_of(S, done)
        st(s, L.SW_FINISH, done + chunk)
        tokens = chunk
        squares = (2 * done + chunk) * chunk
        budget -= chunk
    limit = ldc(spec, L.P_SEQS)
    while budget > 0 and ld(e, L.E_QUEUED) > 0 and ld(e, L.E_CHUNKED) < limit:
        s = slot_at(S, ld(e, L.E_QUEUE))
        prompt = ld32(s, L.S_PROMPT)
        if blocks_of(S, prompt) > free:
            break
        k = pop_front(S, e, L.E_QUEUE)
        push_back(S, e, L.E_CHUNKS, k)
        chunk = min(prompt, budget)
        free -= blocks_of(S, chunk)
        st(s, L.SW_FINISH, chunk)
        st(record_at(S, s), L.R_PREFILL_START, t)
        tokens += chunk
        squares += chunk * chunk
        budget -= chunk
    st(e, L.E_FREE, free)
    if tokens > 0:
        st(e, L.E_BUSY, 1)
        work = ldc(spec, L.P_TOKEN) * tokens + ldc(spec, L.P_SQUARE) * squares
        set_wake(S, p, t + ldc(spec, L.P_BASE_PREFILL) + work)
    else:  # idle; a head that got no blocks waits for a transfer to end
        first = ld(e, L.E_RELEASE)
        blocked = ld(e, L.E_QUEUED) > 0 and first >= 0
        set_wake(S, p, ld(slot_at(S, first), L.SW_TRANSFER) if blocked else L.FOREVER)


@inline
def end_prefill_step(S: int, p: int, t: int) -> None:
    """The step of prefill instance p ends at t (after `before_change`): completed prompts are offered."""
    e = engine_at(S, p)
    st(e, L.E_BUSY, 0)
    while ld(e, L.E_CHUNKS) >= 0:
        s = slot_at(S, ld(e, L.E_CHUNKS))
        if ld(s, L.SW_FINISH) < ld32(s, L.S_PROMPT):
            break
        complete_prompt(S, e, pop_front(S, e, L.E_CHUNKS), t)


@inline
def complete_prompt(S: int, e: int, k: int, t: int) -> None:
    """The prefill of slot k on the instance in row e ended at t."""
    s = slot_at(S, k)
    d = decode_of(ld32(s, L.S_PLACE))
    row = record_at(S, s)
    st(row, L.R_PREFILL_END, t)
    st(s, L.SW_FINISH, t)
    ledger.prefill_done(S, s)
    if rarely(ldc(S, L.H_FIRST_PREFILL) != 0):
        st(row, L.R_FIRST_TOKEN, t)
        st(s, L.SW_LAST, t)
        st32(s, L.S_GENERATED, 1)
        ledger.tokens(S, s, 0, 1)
        if ld32(s, L.S_OUTPUT) == 1:
            st(e, L.E_FREE, ld(e, L.E_FREE) + blocks_of(S, ld32(s, L.S_PROMPT)))
            ledger.leaves(S, s, 1, 1)
            st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | L.RELEASED)
            finish(S, k, s, t)
            return
    target = engine_at(S, ldc(S, L.H_PREFILLS) + d)
    if rarely(ld(target, L.E_STATE) == L.STATE_DOWN):
        generated = ld32(s, L.S_GENERATED)
        end = t + ldc(ldc(e, L.E_SPEC), L.P_LEASE)
        leave_ledger(S, s, generated, 1, 0)
        st(s, L.SW_TRANSFER, end)
        schedule_release(S, e, k, end)
        lose(S, k, t, t if generated > 0 else -1, generated, 1)
    else:
        offer(S, d, target, k, t)
