"""The compiled functions behind `router_state.RouterState`: the ledger of one router, whose engines live elsewhere.

The block's own engines never run. Requests are slots of router 0 and do not stream: their tokens are told. A handle is
number << KEY_SHIFT | slot, the number counting what was sent, so that a slot's next request has another one.
"""

from __future__ import annotations

from . import layout as L
from . import ledger
from .admission import write_views
from .compile import entry, inline
from .failures import set_state
from .learner import expected, learn
from .memory import copy_words, ld, ld32, ldc, st, st32
from .slots import engine_at, recycle, slot_at, take_slot, trace_row

STAGE, NUMBER = L.S_RELEASE, L.S_JOIN
"""Slot cells that nothing but an engine uses: STAGE_…, and the number in the handle."""

FIRST_AT, PREFILLED_AT = L.SW_FINISH, L.SW_TRANSFER
"""Slot words likewise: when its first token came, and when its prefill was done, ps."""

FARTHEST = 1 << 61
"""No time that is noted lies farther back, ps."""

(
    STAGE_FREE,
    STAGE_PENDING,  # awaits its decision
    STAGE_PREFILL,
    STAGE_TRANSFER,  # its prefill is done, no token has come from the decode instance
    STAGE_DECODE,
    STAGE_ADRIFT,  # it was sent to an instance that is gone: in no row of the ledger
) = range(6)

DONE, UNKNOWN, OUT_OF_TURN, BAD_COUNT = range(4)
"""What an event returns: all is well, no request has this handle, the request is at another stage, bad tokens."""

FULL, CLOSED = 0, -1
"""What `ask` returns instead of a prediction."""

MOST_NUMBER = (1 << 31) - 1
MOST_TOKENS = 1 << 30


@inline
def slot_with(S: int, handle: int) -> int:
    """Address of the slot of a request that was sent and has not ended, 0 if there is none with this handle."""
    k = handle & L.KEY_MASK
    if handle < 0 or k >= ld(S, L.H_HIGH):
        return 0
    s = slot_at(S, k)
    if ld32(s, STAGE) <= STAGE_PENDING or ld32(s, NUMBER) != handle >> L.KEY_SHIFT:
        return 0
    return s


@entry
def ask(
    S: int, prompt: int, slo: int, predicted: int, ttft: int, tpot: int, t: int, prefill_out: int, decode_out: int
) -> int:
    """A request awaits a decision at t, and the views are written; returns ô: the given one, or for 0 the learner's.

    Returns FULL or CLOSED, and does nothing, if the slots are used up or a pool has no instance that may be assigned.
    """
    if ld(S, L.H_OPEN_PREFILLS) == 0 or ld(S, L.H_OPEN_DECODES) == 0:
        return CLOSED
    if ld(S, L.H_FREE_SLOT) < 0 and ld(S, L.H_HIGH) == ldc(S, L.H_CAPACITY):
        return FULL
    k = take_slot(S)
    s = slot_at(S, k)
    if predicted == 0:
        predicted = expected(S, 0, prompt, slo)
    st32(s, L.S_REQUEST, k)  # where its targets are
    st32(s, L.S_PROMPT, prompt)
    st32(s, L.S_OUTPUT, 0)
    st32(s, L.S_PREDICTED, predicted)
    st32(s, L.S_GENERATED, 0)
    st32(s, L.S_CROSS, -1)
    st32(s, L.S_PLACE, slo * L.LOOSE_FLAG)
    st32(s, STAGE, STAGE_PENDING)
    given = trace_row(S, k)
    st(given, L.T_ARRIVAL, t)
    st(given, L.T_TTFT, ttft)
    st(given, L.T_TPOT, tpot)
    st(S, L.H_NOW, t)
    st(S, L.H_PENDING, k)
    ledger.sync(S, 0, t)
    write_views(S, 0, prefill_out, decode_out)
    return predicted


@entry
def look(S: int, prefill_out: int, decode_out: int) -> None:
    """Writes the views as they are."""
    write_views(S, 0, prefill_out, decode_out)


@entry
def send(S: int, p: int, d: int) -> int:
    """The pending request goes to prefill instance p and decode instance d; returns its handle."""
    k = ld(S, L.H_PENDING)
    s = slot_at(S, k)
    number = (ld(S, L.H_DECISIONS) + 1) & MOST_NUMBER
    st(S, L.H_DECISIONS, number)
    st(S, L.H_LAST, ld(S, L.H_NOW))
    st(S, L.H_PENDING, -1)
    st32(s, L.S_PLACE, ld32(s, L.S_PLACE) | p | (d << L.PLACE_BITS))
    st32(s, STAGE, STAGE_PREFILL)
    st32(s, NUMBER, number)
    ledger.admitted(S, s)
    return (number << L.KEY_SHIFT) | k


@entry
def withdraw(S: int) -> None:
    """The pending request goes nowhere."""
    k = ld(S, L.H_PENDING)
    st(S, L.H_PENDING, -1)
    forget(S, slot_at(S, k), k)


@inline
def forget(S: int, s: int, k: int) -> None:
    """Gives the slot back."""
    st32(s, STAGE, STAGE_FREE)
    recycle(S, k)


@inline
def count_tokens(S: int, s: int, count: int, t: int) -> None:
    """More tokens came out at t."""
    before = ld32(s, L.S_GENERATED)
    if before == 0:
        st(s, FIRST_AT, t)
    st(s, L.SW_LAST, t)
    ledger.tokens(S, s, before, count)
    st32(s, L.S_GENERATED, before + count)


@inline
def end_prefill(S: int, s: int, t: int) -> None:
    """Its prefill was done at t, and gave the first token where the cluster says so."""
    ledger.prefill_done(S, s)
    st32(s, STAGE, STAGE_TRANSFER)
    st(s, PREFILLED_AT, t)
    if ldc(S, L.H_FIRST_PREFILL) != 0:
        count_tokens(S, s, 1, t)


@inline
def leave(S: int, s: int, stage: int) -> None:
    """It ends, well or not."""
    if stage == STAGE_PREFILL:
        ledger.prefill_done(S, s)
    ledger.leaves(S, s, ld32(s, L.S_GENERATED), int(stage != STAGE_DECODE))


@entry
def prefill_done(S: int, handle: int, t: int) -> int:
    """The prefill of a request was done at t."""
    s = slot_with(S, handle)
    if s == 0:
        return UNKNOWN
    stage = ld32(s, STAGE)
    if stage == STAGE_ADRIFT:
        return DONE
    if stage != STAGE_PREFILL:
        return OUT_OF_TURN
    end_prefill(S, s, t)
    return DONE


@entry
def first_token(S: int, handle: int, t: int) -> int:
    """The first token of a request came from its decode (or mixed) instance at t."""
    s = slot_with(S, handle)
    if s == 0:
        return UNKNOWN
    stage = ld32(s, STAGE)
    if stage == STAGE_ADRIFT:
        return DONE
    if stage == STAGE_PREFILL and ldc(S, L.H_MIXED) != 0:
        end_prefill(S, s, t)
    elif stage != STAGE_TRANSFER:
        return OUT_OF_TURN
    ledger.first_token(S, s)
    count_tokens(S, s, 1, t)
    st32(s, STAGE, STAGE_DECODE)
    return DONE


@entry
def tokens(S: int, handle: int, count: int, t: int) -> int:
    """`count` more tokens of a request came out by t, after its first."""
    s = slot_with(S, handle)
    if s == 0:
        return UNKNOWN
    stage = ld32(s, STAGE)
    if count < 1 or count > MOST_TOKENS - ld32(s, L.S_GENERATED):
        return BAD_COUNT
    if stage == STAGE_ADRIFT:
        return DONE
    if stage != STAGE_DECODE:
        return OUT_OF_TURN
    count_tokens(S, s, count, t)
    return DONE


@entry
def finished(S: int, handle: int, output: int) -> int:
    """A request has ended with `output` tokens; the learner takes that in."""
    s = slot_with(S, handle)
    if s == 0:
        return UNKNOWN
    stage = ld32(s, STAGE)
    if output < 0 or output > MOST_TOKENS:
        return BAD_COUNT
    if stage == STAGE_PREFILL and ldc(S, L.H_MIXED) == 0:
        return OUT_OF_TURN
    if stage != STAGE_ADRIFT:
        leave(S, s, stage)
    st32(s, L.S_OUTPUT, output)
    if output > 0:
        learn(S, s)
    forget(S, s, handle & L.KEY_MASK)
    return DONE


@entry
def failed(S: int, handle: int) -> int:
    """A request has ended without its output."""
    s = slot_with(S, handle)
    if s == 0:
        return UNKNOWN
    stage = ld32(s, STAGE)
    if stage != STAGE_ADRIFT:
        leave(S, s, stage)
    forget(S, s, handle & L.KEY_MASK)
    return DONE


@entry
def put_clock_back(S: int, by: int) -> None:
    """All that was noted of requests in flight happened that much earlier, `by` ≤ FARTHEST, or at −FARTHEST."""
    for k in range(ld(S, L.H_HIGH)):
        s = slot_at(S, k)
        for word in (FIRST_AT, PREFILLED_AT, L.SW_LAST):
            st(s, word, max(-FARTHEST, ld(s, word) - by))
        given = trace_row(S, k)
        st(given, L.T_ARRIVAL, max(-FARTHEST, ld(given, L.T_ARRIVAL) - by))


@entry
def set_open(S: int, i: int, may: int) -> None:
    """Instance i (prefill instances first) may be assigned or not."""
    set_state(S, i, engine_at(S, i), L.STATE_UP if may != 0 else L.STATE_DRAINING)


@entry
def take_over(S: int, old: int, prefills: int, decodes: int) -> None:
    """Puts the requests of block `old` into the same slots of the empty block S, which has as many.

    `prefills` and `decodes` are addresses of int64: the new index of each old prefill and decode (mixed) instance, −1
    if it is gone.
    """
    st(S, L.H_HIGH, ld(old, L.H_HIGH))
    for k in range(ld(old, L.H_HIGH)):
        s = slot_at(S, k)
        copy_words(s, slot_at(old, k), L.SLOT_WORDS)
        st(S, L.H_LIVE, ld(S, L.H_LIVE) + 1)
        if ld32(s, STAGE) == STAGE_FREE:
            recycle(S, k)
        elif ld32(s, STAGE) != STAGE_ADRIFT:
            replay(S, s, prefills, decodes)


@inline
def replay(S: int, s: int, prefills: int, decodes: int) -> None:
    """What happened to the request in slot address s happens again, on the instances that it has now.

    After its prefill it is of no account to it whether that instance is still there.
    """
    place, stage, generated = ld32(s, L.S_PLACE), ld32(s, STAGE), ld32(s, L.S_GENERATED)
    p, d = ld(prefills, place & L.PLACE_MASK), ld(decodes, (place >> L.PLACE_BITS) & L.PLACE_MASK)
    if d < 0 or (p < 0 and stage == STAGE_PREFILL):
        st32(s, STAGE, STAGE_ADRIFT)
        return
    st32(s, L.S_PLACE, (place & L.LOOSE_FLAG) | max(p, 0) | (d << L.PLACE_BITS))
    ledger.admitted(S, s)
    if stage != STAGE_PREFILL:
        ledger.prefill_done(S, s)
    ledger.tokens(S, s, 0, generated)
    if stage == STAGE_DECODE:
        ledger.first_token(S, s)
