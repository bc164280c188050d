"""A belief: the state in which a cluster would be if it were as a router believes, made of the router's rows.

An empty block of the believed cluster is given the requests of `known.py`. Every engine is put to the last moment of
which the router knows what happened there, and makes its next pass by the core's own rules:

* a decode instance: when its last tokens came. Requests that got tokens then are its batch. Those that have tokens but
  got none then were preempted, and wait. A request in transfer was offered when its prefill was done; its blocks were
  reserved at the end of the step that ran then, as far as they fit.
* a prefill instance: when its last prefill was done, or the oldest of its prompts was sent.

What that pass starts ends as the believed times say, but not before now: it would have been seen. How many tokens a
request has to come is whoever's belief it is (K_LEFT).
"""

from __future__ import annotations

from . import layout as L
from . import ledger
from .arithmetic import leap_time
from .batch import held_blocks, join_batch
from .compile import inline, rare
from .decode import decode_pass, end_decode_step, offer
from .known import (
    IN_DECODE,
    IN_PREFILL,
    IN_TRANSFER,
    K_ARRIVAL,
    K_FIRST,
    K_LAST,
    K_LEFT,
    K_ORDER,
    K_PLACE,
    K_PREDICTED,
    K_PREFILLED,
    K_PROMPT,
    K_STAGE,
    K_TOKENS,
    K_TPOT,
    K_TTFT,
    KNOWN_WORDS,
)
from .memory import ld, ld32, ldc, st, st16, st32
from .polls import refresh
from .prefill import end_prefill_step, prefill_pass
from .slots import (
    batch_key,
    blocks_of,
    decode_of,
    engine_at,
    leap_of,
    prefill_of,
    push_back,
    record_at,
    set_wake,
    slot_at,
    take_slot,
    trace_row,
    wake_of,
)
from .transfer import reserve

MOST_OUTPUT = 1 << 16
"""A request is believed to have at most so many output tokens to come: times stay far inside int64."""

_NEWEST = 1 << 30
"""Number of the next to join running; those that run have lower ones, the older the lower."""


@rare
def believe(B: int, S: int, router: int, rows: int, n: int, scratch: int) -> None:
    """Puts the n rows of a router of block S, which awaits a decision, into the empty block B of the believed cluster.

    `scratch`: n + 3 words per engine. The requests of B have the numbers of their rows.
    """
    now = ld(S, L.H_NOW)
    copy_instances(B, S, router)
    st(B, L.H_NOW, now)
    last, starts, keys = scratch, scratch + ldc(B, L.H_ENGINES) * 8, scratch + ldc(B, L.H_ENGINES) * 16
    for i in range(ldc(B, L.H_ENGINES)):
        st(last, i, -1)
        st(starts, i, L.FOREVER)
    for j in range(n):
        plant(B, j, rows + j * (KNOWN_WORDS * 8), last)
    for j in range(n):
        go_on_decoding(B, j, rows + j * (KNOWN_WORDS * 8), last, now)
    moving = in_order(rows, n, IN_TRANSFER, K_PREFILLED, keys)
    for at in range(moving):
        j = ld(keys, at)
        hand_over(B, j, rows + j * (KNOWN_WORDS * 8), last)
    prompts = in_order(rows, n, IN_PREFILL, K_ORDER, keys + moving * 8)
    prefills = ldc(B, L.H_PREFILLS)
    if ldc(B, L.H_MIXED) != 0:
        for at in range(prompts):
            queue_local(B, ld(keys, moving + at), rows, last, starts)
    for d in range(ldc(B, L.H_DECODES)):
        settle_decode(B, d, now, ld(last, prefills + d), ld(starts, prefills + d))
    for at in range(moving):
        j = ld(keys, at)
        row = rows + j * (KNOWN_WORDS * 8)
        d = decode_of(ld(row, K_PLACE))
        if comes_late(ld(row, K_PREFILLED), last, prefills + d):
            offer(B, d, engine_at(B, prefills + d), j, ld(row, K_PREFILLED))
    if ldc(B, L.H_MIXED) != 0:
        for at in range(prompts):
            offer_late(B, ld(keys, moving + at), rows, last, starts)
        return
    for p in range(prefills):
        settle_prefill(B, p, rows, keys + moving * 8, prompts, now, ld(last, p))


@inline
def copy_instances(B: int, S: int, router: int) -> None:
    """Which instances may be assigned, and what was polled."""
    for p in range(ldc(S, L.H_ROUTED)):
        st(ledger.prefill_row(B, 0, p), L.PRE_OPEN, ld(ledger.prefill_row(S, router, p), L.PRE_OPEN))
    for d in range(ldc(S, L.H_DECODES)):
        st(ledger.decode_row(B, 0, d), L.DEC_OPEN, ld(ledger.decode_row(S, router, d), L.DEC_OPEN))
    for i in range(ldc(S, L.H_ENGINES)):
        e, to = engine_at(S, i), engine_at(B, i)
        refresh(S, i, e)
        st(to, L.E_STATE, ld(e, L.E_STATE))
        st(to, L.E_POLLED, ld(e, L.E_POLLED))
        st(to, L.E_POLL_USED, ld(e, L.E_POLL_USED))
        st(to, L.E_POLL_RUNNING, ld(e, L.E_POLL_RUNNING))
        st(to, L.E_POLL_WAITING, ld(e, L.E_POLL_WAITING))
    st(B, L.H_OPEN_PREFILLS, ld(S, L.H_OPEN_PREFILLS))
    st(B, L.H_OPEN_DECODES, ld(S, L.H_OPEN_DECODES))
    st(B, L.H_VISIBLE, ld(S, L.H_VISIBLE))
    st(B, L.H_LAST, ld(S, L.H_LAST + router))


@inline
def plant(B: int, j: int, row: int, last: int) -> None:
    """Row j becomes the request in slot j, in the ledger alone; notes what was seen last of its instances."""
    s = slot_at(B, take_slot(B))
    place, stage, tokens = ld(row, K_PLACE), ld(row, K_STAGE), ld(row, K_TOKENS)
    i = ldc(B, L.H_PREFILLS) + decode_of(place)
    st32(s, L.S_REQUEST, j)
    st32(s, L.S_PROMPT, ld(row, K_PROMPT))
    st32(s, L.S_OUTPUT, output_of(B, row, engine_at(B, i)))
    st32(s, L.S_PREDICTED, ld(row, K_PREDICTED))
    st32(s, L.S_GENERATED, tokens)
    st32(s, L.S_CROSS, -1)
    st(s, L.SW_LAST, ld(row, K_LAST))
    given = trace_row(B, j)
    st(given, L.T_ARRIVAL, ld(row, K_ARRIVAL))
    st(given, L.T_TTFT, ld(row, K_TTFT))
    st(given, L.T_TPOT, ld(row, K_TPOT))
    record = record_at(B, s)
    st(record, L.R_ARRIVAL, ld(row, K_ARRIVAL))
    st(record, L.R_PREFILL_START, -1)
    st(record, L.R_FIRST_TOKEN, ld(row, K_FIRST))
    st(record, L.R_END, -1)
    st(record, L.R_MAX_STALL, 0)
    st32(record, L.R32_PREEMPTIONS, 0)
    st16(record, L.R16_STATUS, 0)
    if ldc(B, L.H_MIXED) != 0:
        st32(s, L.S_PLACE, place | L.LOCAL | L.RELEASED)
    else:
        st32(s, L.S_PLACE, (place | L.RELEASED) if stage == IN_DECODE else place)
    ledger.admitted(B, s)
    if stage != IN_PREFILL:
        ledger.prefill_done(B, s)
        if ldc(B, L.H_MIXED) == 0:
            p = prefill_of(place)
            st(last, p, max(ld(last, p), ld(row, K_PREFILLED)))
    if tokens > 0:
        ledger.tokens(B, s, 0, tokens)
    if stage == IN_DECODE:
        ledger.first_token(B, s)
        st(last, i, max(ld(last, i), ld(row, K_LAST)))


@inline
def output_of(B: int, row: int, e: int) -> int:
    """Output tokens that the request of a row is believed to have in all; at least one is still to come.

    No more than the KV cache of its decode instance (engine row e) holds, or it would never end.
    """
    tokens = ld(row, K_TOKENS)
    holds = ldc(ldc(e, L.E_SPEC), L.P_BLOCKS) * ldc(B, L.H_BLOCK) + 1 - ld(row, K_PROMPT)
    return max(tokens + 1, min(tokens + min(ld(row, K_LEFT), MOST_OUTPUT), holds))


@inline
def go_on_decoding(B: int, j: int, row: int, last: int, now: int) -> None:
    """A request with tokens joins the batch, or the queue if it got none when others of its instance did."""
    if ld(row, K_STAGE) != IN_DECODE:
        return
    d = decode_of(ld(row, K_PLACE))
    i = ldc(B, L.H_PREFILLS) + d
    e, s = engine_at(B, i), slot_at(B, j)
    spec = ldc(e, L.E_SPEC)
    left = ld32(s, L.S_OUTPUT) - ld32(s, L.S_GENERATED)
    blocks = blocks_of(B, ld(row, K_PROMPT) + ld(row, K_TOKENS) - 1)
    late = ld(last, i) - ld(row, K_LAST)
    if 2 * late > ldc(spec, L.P_BASE_DECODE) or blocks > ld(e, L.E_FREE) or ld(e, L.E_BATCH) >= ldc(spec, L.P_SEQS):
        st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | L.LOCAL)
        push_back(B, e, L.E_QUEUE, j)
        return
    join_batch(B, d, e, j, s, left, 0)
    st(e, L.E_FREE, ld(e, L.E_FREE) - held_blocks(B, s, 0))
    age = (now - ld(row, K_FIRST)) >> 27  # in units of 0.13 ms: enough to tell who is newer
    st32(s, L.S_JOIN, max(0, _NEWEST - age))
    st(e, L.E_JOINS, _NEWEST + 1)
    ledger.streams(B, j, s, 0, left)


@inline
def in_order(rows: int, n: int, stage: int, field: int, keys: int) -> int:
    """Writes the rows of a stage by a field, ascending; returns how many. They are nearly in order already."""
    count = 0
    for j in range(n):
        row = rows + j * (KNOWN_WORDS * 8)
        if ld(row, K_STAGE) == stage:
            own = ld(row, field)
            at = count
            while at > 0 and ld(rows + ld(keys, at - 1) * (KNOWN_WORDS * 8), field) > own:
                st(keys, at, ld(keys, at - 1))
                at -= 1
            st(keys, at, j)
            count += 1
    return count


@inline
def comes_late(prefilled: int, last: int, i: int) -> bool:
    """Whether a prefill was done after the last tokens of decode engine i: its offer awaits the end of a step."""
    return ld(last, i) >= 0 and prefilled > ld(last, i)


@inline
def hand_over(B: int, j: int, row: int, last: int) -> None:
    """A request in transfer: its prefill instance holds its KV, its decode instance pulls it or has it wait."""
    place, prefilled = ld(row, K_PLACE), ld(row, K_PREFILLED)
    d, i = decode_of(place), ldc(B, L.H_PREFILLS) + decode_of(place)
    if ldc(B, L.H_MIXED) != 0:
        push_back(B, engine_at(B, i), L.E_QUEUE, j)
        return
    e, source, s = engine_at(B, i), engine_at(B, prefill_of(place)), slot_at(B, j)
    st(s, L.SW_FINISH, prefilled)
    st(source, L.E_FREE, ld(source, L.E_FREE) - blocks_of(B, ld(row, K_PROMPT)))
    if comes_late(prefilled, last, i):
        return
    known = blocks_of(B, ld(row, K_PROMPT) + ld(row, K_TOKENS))
    if ld(e, L.E_QUEUED) > 0 or known > ld(e, L.E_FREE):
        push_back(B, e, L.E_QUEUE, j)
        return
    at = prefilled
    batch = ld(e, L.E_BATCH)
    if batch > 0:  # at the end of the step that ran then
        spec = ldc(e, L.E_SPEC)
        step = ldc(ldc(spec, L.P_BATCH), batch) + ldc(spec, L.P_CONTEXT) * ld(e, L.E_BASE) + ldc(spec, L.P_BASE_DECODE)
        at = ld(last, i) - (ld(last, i) - prefilled) // step * step
    st(e, L.E_FREE, ld(e, L.E_FREE) - known)
    reserve(B, d, e, j, at)


@inline
def queue_local(B: int, j: int, rows: int, last: int, starts: int) -> None:
    """A prompt on a mixed instance that was there when its last known step began; an idle one begins with it."""
    row = rows + j * (KNOWN_WORDS * 8)
    i = decode_of(ld(row, K_PLACE))
    if ld(last, i) < 0:
        st(starts, i, min(ld(starts, i), ld(row, K_ARRIVAL)))
    if ld(row, K_ARRIVAL) <= max(ld(last, i), pick_start(ld(starts, i))):
        push_back(B, engine_at(B, i), L.E_QUEUE, j)


@inline
def pick_start(start: int) -> int:
    """−1 for a start that never came."""
    return -1 if start == L.FOREVER else start


@inline
def offer_late(B: int, j: int, rows: int, last: int, starts: int) -> None:
    """A prompt on a mixed instance that came after its last known step had begun."""
    row = rows + j * (KNOWN_WORDS * 8)
    i = decode_of(ld(row, K_PLACE))
    if ld(row, K_ARRIVAL) > max(ld(last, i), pick_start(ld(starts, i))):
        offer(B, i, engine_at(B, i), j, ld(row, K_ARRIVAL))


@inline
def settle_decode(B: int, d: int, now: int, last: int, start: int) -> None:
    """Instance d goes on from its last tokens, or from when its first prompt or transfer came, up to now."""
    i = ldc(B, L.H_PREFILLS) + d
    e = engine_at(B, i)
    t = last if last >= 0 else min(start, ld(e, L.E_HOLD_TIME))
    if t > now:  # idle, or all is still in transit
        set_wake(B, i, now + 1 if ld(e, L.E_QUEUED) > 0 else ld(e, L.E_HOLD_TIME))
        return
    decode_pass(B, d, t)
    while True:
        if ld(e, L.E_BUSY) == 0:
            t = wake_of(B, i)
            if t > now:
                return
            decode_pass(B, d, t)  # a transfer has ended
            continue
        ends = ld(leap_of(B, d), L.LEAP_START) + ld(leap_of(B, d), L.LEAP_FIRST)
        if ends > now:
            return
        if ld(e, L.E_BATCH) > 0 or prompt_is_done(B, e):
            put_off(B, d, e, now + 1 - ends)
            return
        end_decode_step(B, d, ends)  # a part of a prompt: nothing was to be seen
        decode_pass(B, d, ends)


@inline
def prompt_is_done(B: int, e: int) -> bool:
    """Whether the step of engine row e completes its first chunk's prompt."""
    k = ld(e, L.E_CHUNKS)
    if k < 0:
        return False
    s = slot_at(B, k)
    return ld(s, L.SW_FINISH) >= ld32(s, L.S_PROMPT) + ld32(s, L.S_GENERATED)


@inline
def put_off(B: int, d: int, e: int, by: int) -> None:
    """The leap of instance d began, and ends, that much later."""
    leap = leap_of(B, d)
    start = ld(leap, L.LEAP_START) + by
    st(leap, L.LEAP_START, start)
    first, growth = ld(leap, L.LEAP_FIRST), ld(leap, L.LEAP_GROWTH)
    set_wake(B, ldc(B, L.H_PREFILLS) + d, start + leap_time(first, growth, ld(leap, L.LEAP_STEPS)))
    for at in range(ld(e, L.E_OLD), ld(e, L.E_BATCH)):
        s = slot_at(B, ld(batch_key(B, d, at), 0) & L.KEY_MASK)
        if ld32(s, L.S_GENERATED) == 0:
            st(record_at(B, s), L.R_FIRST_TOKEN, start + first)


@inline
def settle_prefill(B: int, p: int, rows: int, keys: int, prompts: int, now: int, last: int) -> None:
    """Prefill instance p goes on from its last prefill, or from its first prompt's arrival, up to now."""
    e = engine_at(B, p)
    t = -1
    for at in range(prompts):
        j = ld(keys, at)
        row = rows + j * (KNOWN_WORDS * 8)
        if prefill_of(ld(row, K_PLACE)) != p:
            continue
        if t < 0:
            t = max(last, ld(row, K_ARRIVAL))
        elif ld(row, K_ARRIVAL) > t:
            t = work_up_to(B, p, e, t, ld(row, K_ARRIVAL) - 1, now)
        push_back(B, e, L.E_QUEUE, j)
    if t >= 0:
        work_up_to(B, p, e, t, now, now)


@inline
def work_up_to(B: int, p: int, e: int, t: int, limit: int, now: int) -> int:
    """Makes the pass that is due at t, and the following ones up to `limit`; returns when the next one is due.

    A step that would have completed a prompt ends right after now.
    """
    while t <= limit:
        if ld(e, L.E_BUSY) != 0:
            if prompt_is_done(B, e):
                set_wake(B, p, now + 1)
                return now + 1
            end_prefill_step(B, p, t)
        prefill_pass(B, p, t)
        t = wake_of(B, p)
    return t
