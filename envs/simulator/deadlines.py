"""Which misses are certain: the deadlines of the agent's requests whose fate is open.

A request that has no token by arrival + TTFT target has missed it; one whose first token came in time misses its TPOT
target once more than (o − 1) · target has passed since. A deadline says until when no miss of its request can be
certain. When it has passed the request is judged by its record: it is missed, or has another such instant. Requests
that end are judged by their whole record.

A deadline has the place of its request's slot. Places form groups of eight, a cache line of deadlines, and eight groups
form a stretch, which begins with the least deadline of each, so that vectors find those that have passed in few cache
lines, faster than a heap. What judging a request takes, its note, stands right behind its record, in the same row.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .compile import inline, rare
from .memory import ld, ld16, ld32, ldc, ldc32, prefetch, st
from .slots import record_at, slot_at, trace_row

FINISHED_STATUS, REJECTED_STATUS = 0, 2

SETTLED = -1
"""Place of a request whose miss is counted."""

NO_SPAN = 1 << 60
"""Span of a request with one output token: no TPOT target binds it."""

# a note: words of a record's row
N_PLACE = L.RECORD_WORDS  # its slot, or SETTLED
N_FIRST = N_PLACE + 1  # TTFT's deadline, ps
N_SPAN = N_PLACE + 2  # longest time between first and last token, ps
assert N_SPAN < L.ROW_WORDS

GROUP_SHIFT, STRETCH_SHIFT = 3, 6
STRETCH = 1 << STRETCH_SHIFT
"""Places of a stretch."""

STRETCH_WORDS = V.WIDTH + STRETCH
"""The least deadline of each group; then the groups."""


def fate_words(slots: int) -> int:
    """Words that the deadlines of so many slots take."""
    return -(-slots // STRETCH) * STRETCH_WORDS


@inline
def stretch_of(S: int, k: int) -> int:
    """Address of the stretch of a slot."""
    return ldc(S, L.H_FATES) + (k >> STRETCH_SHIFT) * (STRETCH_WORDS * 8)


@inline
def group_of(S: int, k: int) -> int:
    """Address of the group of a slot."""
    return stretch_of(S, k) + (V.WIDTH + (k & (STRETCH - V.WIDTH))) * 8


@inline
def set_deadline(S: int, k: int, deadline: int) -> None:
    """Writes the deadline of the request in slot k, and the least of its group."""
    group = group_of(S, k)
    changed = V.choose(V.counting(0) == (k & (V.WIDTH - 1)), V.spread(deadline), V.load(group, 0))
    V.store(group, 0, changed)
    st(stretch_of(S, k), (k >> GROUP_SHIFT) & (V.WIDTH - 1), V.least_of(changed))


@inline
def open_fate(S: int, k: int) -> None:
    """The fate of the request in slot k, which was just sent, is open."""
    request = ld32(slot_at(S, k), L.S_REQUEST)
    now, given = ld(S, L.H_NOW), trace_row(S, request)
    first = ldc(given, L.T_ARRIVAL) + ldc(given, L.T_TTFT)
    output = ldc32(given, L.T32_OUTPUT)
    span = (output - 1) * ldc(given, L.T_TPOT) if output > 1 else NO_SPAN
    row = record_at(S, slot_at(S, k))
    st(row, N_PLACE, k)
    st(row, N_FIRST, first)
    st(row, N_SPAN, span)
    set_deadline(S, k, min(first, now + span))


@inline
def settle(S: int, row: int) -> None:
    """The fate of a request (record row) is known: it has no deadline any more."""
    set_deadline(S, ld(row, N_PLACE), L.FOREVER)
    st(row, N_PLACE, SETTLED)


@rare
def move_fate(S: int, k: int, to: int) -> None:
    """The request in slot k, whose row is copied already, goes on in slot `to`; a fate that is not open stays so."""
    row = record_at(S, slot_at(S, to))
    if ld(row, N_PLACE) != SETTLED:
        st(row, N_PLACE, to)
    set_deadline(S, to, ld(group_of(S, k), k & (V.WIDTH - 1)))
    set_deadline(S, k, L.FOREVER)


@inline
def first_passed(S: int, k: int, now: int) -> int:
    """The first slot from the stretch of k on whose deadline lies before now, −1 if there is none."""
    for first in range(k & -STRETCH, ld(S, L.H_HIGH), STRETCH):
        found = V.first_true(V.load(stretch_of(S, first), 0) < now)
        if found < V.WIDTH:
            k = first + found * V.WIDTH
            return k + V.first_true(V.load(group_of(S, k), 0) < now)
    return -1


@inline
def next_deadline(row: int, now: int) -> int:
    """Until when, given what is out at `now`, a request in flight (record row) cannot be a certain miss, ps.

    Without a token it is TTFT's deadline, or TPOT's of a token that came out right now, whichever is earlier: a request
    with few tokens may miss TPOT before TTFT's deadline. The core may know a token before its time (it ends a step
    that has begun), which a kill can still prevent.
    """
    first, span = ld(row, N_FIRST), ld(row, N_SPAN)
    token = ld(row, L.R_FIRST_TOKEN)
    if token < 0 or token > now:
        return min(first, now + span)
    return first if token > first else token + span


@inline
def was_sent(row: int) -> bool:
    """Whether a request that has ended (record row) was ever sent: one that no instance could take was not."""
    return ld16(row, L.R16_STATUS) != REJECTED_STATUS or ld32(row, L.R32_REROUTES) > 0


@inline
def met_targets(row: int) -> bool:
    """Whether a request that was sent and has ended (record row) met both targets."""
    token = ld(row, L.R_FIRST_TOKEN)
    in_time = ld16(row, L.R16_STATUS) == FINISHED_STATUS and token <= ld(row, N_FIRST)
    return in_time and ld(row, L.R_LAST_TOKEN) - token <= ld(row, N_SPAN)


@inline
def fetch_fates(S: int, k: int) -> None:
    """Asks for the least deadlines of the groups, and for the group of slot k."""
    for first in range(0, ld(S, L.H_HIGH), STRETCH):
        prefetch(stretch_of(S, first))
    prefetch(group_of(S, k))


@inline
def fetch_request(S: int, k: int) -> None:
    """Asks for what is known of the request in slot k."""
    s = slot_at(S, k)
    prefetch(s)
    if ldc(S, L.H_ROWS) != 0:
        prefetch(s + L.SLOT_BYTES)
        prefetch(s + L.SLOT_BYTES + 64)


@inline
def fetch_passing(S: int, t: int) -> None:
    """Asks for the first request whose deadline passes before t."""
    k = first_passed(S, 0, t)
    if k >= 0:
        fetch_request(S, k)
