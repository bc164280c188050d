"""Which misses are certain: the deadlines of the agent's requests whose fate is open.

A request that has no token by arrival + TTFT target has missed it; one whose first token came in time misses its TPOT
target once more than (o − 1) · target has passed since. A deadline says until when no miss of its request can be
certain. When it has passed the request is judged by its record: it is missed, or has another such instant. Requests
that end are judged by their whole record.

Deadlines stand in an array in no order, beside the requests that they belong to: vectors find those that have passed
faster than a heap would, since few are open at a time. A request that is no longer open gives its place to the last.
A note per request says what judging it takes, on one cache line.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .compile import inline
from .memory import ld, ld16, ld32, ldc, ldc32, st

FINISHED_STATUS, REJECTED_STATUS = 0, 2

SETTLED = -1
"""Place of a request whose miss is counted."""

NO_SPAN = 1 << 60
"""Span of a request with one output token: no TPOT target binds it."""

# a note
N_PLACE = 0  # where its deadline stands, or SETTLED
N_FIRST = 1  # TTFT's deadline, ps
N_SPAN = 2  # longest time between first and last token, ps
NOTE_WORDS = 4


@inline
def record_of(S: int, request: int) -> int:
    """Address of the record row of a request of the trace."""
    return ldc(S, L.H_RECORDS) + request * ldc(S, L.H_RECORD_STRIDE)


@inline
def note_of(notes: int, request: int) -> int:
    """Address of a request's note."""
    return notes + request * (NOTE_WORDS * 8)


@inline
def open_fate(S: int, notes: int, deadlines: int, requests: int, count: int, request: int) -> None:
    """Adds a request that was just sent to the `count` open ones."""
    now = ld(S, L.H_NOW)
    first = ldc(ldc(S, L.H_T_ARRIVAL), request) + ldc(ldc(S, L.H_T_TTFT), request)
    output = ldc32(ldc(S, L.H_T_OUTPUT), request)
    span = (output - 1) * ldc(ldc(S, L.H_T_TPOT), request) if output > 1 else NO_SPAN
    note = note_of(notes, request)
    st(note, N_PLACE, count)
    st(note, N_FIRST, first)
    st(note, N_SPAN, span)
    if count & (V.WIDTH - 1) == 0:
        V.store(deadlines, count, V.spread(L.FOREVER))
    st(deadlines, count, min(first, now + span))
    st(requests, count, request)


@inline
def settle(notes: int, deadlines: int, requests: int, count: int, request: int) -> int:
    """Takes a request out of the `count` open ones; returns how many are left."""
    note = note_of(notes, request)
    at = ld(note, N_PLACE)
    last = count - 1
    moved = ld(requests, last)
    st(deadlines, at, ld(deadlines, last))
    st(requests, at, moved)
    st(note_of(notes, moved), N_PLACE, at)
    st(deadlines, last, L.FOREVER)
    st(note, N_PLACE, SETTLED)
    return last


@inline
def first_passed(deadlines: int, at: int, count: int, now: int) -> int:
    """The first place from `at`, a multiple of eight, on whose deadline lies before now; `count` or more if none."""
    while at < count:
        found = V.first_true(V.load(deadlines, at) < now)
        if found < V.WIDTH:
            return at + found
        at += V.WIDTH
    return at


@inline
def next_deadline(S: int, note: int, request: int, now: int) -> int:
    """Until when, given what is out at `now`, a request in flight cannot be a certain miss, ps.

    Without a token it is TTFT's deadline, or TPOT's of a token that came out right now, whichever is earlier: a request
    with few tokens may miss TPOT before TTFT's deadline. The core may know a token before its time (it ends a step
    that has begun), which a kill can still prevent.
    """
    first, span = ld(note, N_FIRST), ld(note, N_SPAN)
    token = ld(record_of(S, request), L.R_FIRST_TOKEN)
    if token < 0 or token > now:
        return min(first, now + span)
    return first if token > first else token + span


@inline
def was_sent(row: int) -> bool:
    """Whether a request that has ended (record row) was ever sent: one that no instance could take was not."""
    return ld16(row, L.R16_STATUS) != REJECTED_STATUS or ld32(row, L.R32_REROUTES) > 0


@inline
def met_targets(row: int, note: int) -> bool:
    """Whether a request that was sent and has ended met both targets."""
    token = ld(row, L.R_FIRST_TOKEN)
    in_time = ld16(row, L.R16_STATUS) == FINISHED_STATUS and token <= ld(note, N_FIRST)
    return in_time and ld(row, L.R_LAST_TOKEN) - token <= ld(note, N_SPAN)
