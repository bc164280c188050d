"""Which misses are certain: the deadlines of the agent's requests whose fate is open.

A request that has no token by arrival + TTFT target has missed it; one whose first token came in time misses its TPOT
target once more than (o − 1) · target has passed since. A deadline says until when no miss of its request can be
certain. When it has passed the request is judged by its record: it is missed, or has another such instant. Requests
that end are judged by their whole record.

Open requests have places, in no order; one that is no longer open gives its place to the last. Places form groups of
eight: a row of eight deadlines and then the requests that they belong to. Eight groups form a stretch, which begins
with the least deadline of each, so that vectors find those that have passed in few cache lines, faster than a heap.
What judging a request takes, its note, stands right behind its record, in the same row.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .compile import inline
from .memory import ld, ld16, ld32, ldc, ldc32, prefetch, st
from .slots import trace_row

FINISHED_STATUS, REJECTED_STATUS = 0, 2

SETTLED = -1
"""Place of a request whose miss is counted."""

NO_SPAN = 1 << 60
"""Span of a request with one output token: no TPOT target binds it."""

# a note: words of a record's row
N_PLACE = L.RECORD_WORDS  # its place among the open ones, or SETTLED
N_FIRST = N_PLACE + 1  # TTFT's deadline, ps
N_SPAN = N_PLACE + 2  # longest time between first and last token, ps
NOTE_WORDS = 3

GROUP_SHIFT, STRETCH_SHIFT = 3, 6
STRETCH = 1 << STRETCH_SHIFT
"""Places of a stretch."""

# a stretch: the least deadline of each group; then the groups, each of deadlines and requests
G_DEADLINES, G_REQUESTS = V.WIDTH, 2 * V.WIDTH
GROUP_WORDS = 2 * V.WIDTH
STRETCH_WORDS = V.WIDTH + V.WIDTH * GROUP_WORDS


@inline
def record_of(S: int, request: int) -> int:
    """Address of the record row of a request of the trace; its note follows."""
    return ldc(S, L.H_RECORDS) + request * ldc(S, L.H_RECORD_STRIDE)


@inline
def stretch_of(fates: int, at: int) -> int:
    """Address of the stretch of a place."""
    return fates + (at >> STRETCH_SHIFT) * (STRETCH_WORDS * 8)


@inline
def group_of(fates: int, at: int) -> int:
    """Address of the group of a place; its rows are G_DEADLINES and G_REQUESTS words further."""
    return stretch_of(fates, at) + ((at >> GROUP_SHIFT) & (V.WIDTH - 1)) * (GROUP_WORDS * 8)


@inline
def request_at(fates: int, at: int) -> int:
    """The open request at a place."""
    return ld(group_of(fates, at), G_REQUESTS + (at & (V.WIDTH - 1)))


@inline
def set_deadline(fates: int, at: int, deadline: int) -> None:
    """Writes a deadline, and the least of its group."""
    group = group_of(fates, at)
    changed = V.choose(V.counting(0) == (at & (V.WIDTH - 1)), V.spread(deadline), V.load(group, G_DEADLINES))
    V.store(group, G_DEADLINES, changed)
    st(stretch_of(fates, at), (at >> GROUP_SHIFT) & (V.WIDTH - 1), V.least_of(changed))


@inline
def set_request(fates: int, at: int, request: int) -> None:
    """Writes which request is at a place."""
    st(group_of(fates, at), G_REQUESTS + (at & (V.WIDTH - 1)), request)


@inline
def open_fate(S: int, fates: int, count: int, request: int) -> None:
    """Adds a request that was just sent to the `count` open ones."""
    now, given = ld(S, L.H_NOW), trace_row(S, request)
    first = ldc(given, L.T_ARRIVAL) + ldc(given, L.T_TTFT)
    output = ldc32(given, L.T32_OUTPUT)
    span = (output - 1) * ldc(given, L.T_TPOT) if output > 1 else NO_SPAN
    row = record_of(S, request)
    st(row, N_PLACE, count)
    st(row, N_FIRST, first)
    st(row, N_SPAN, span)
    if count & (V.WIDTH - 1) == 0:
        V.store(group_of(fates, count), G_DEADLINES, V.spread(L.FOREVER))
        if count & (STRETCH - 1) == 0:
            V.store(stretch_of(fates, count), 0, V.spread(L.FOREVER))
    set_deadline(fates, count, min(first, now + span))
    set_request(fates, count, request)


@inline
def settle(S: int, fates: int, count: int, row: int) -> int:
    """Takes a request (record row) out of the `count` open ones; returns how many are left."""
    at = ld(row, N_PLACE)
    last = count - 1
    moved = request_at(fates, last)
    set_deadline(fates, at, ld(group_of(fates, last), G_DEADLINES + (last & (V.WIDTH - 1))))
    set_request(fates, at, moved)
    st(record_of(S, moved), N_PLACE, at)
    set_deadline(fates, last, L.FOREVER)
    st(row, N_PLACE, SETTLED)
    return last


@inline
def first_passed(fates: int, at: int, count: int, now: int) -> int:
    """The first place from the stretch of `at` on whose deadline lies before now; `count` if there is none."""
    for first in range(at & -STRETCH, count, STRETCH):
        found = V.first_true(V.load(stretch_of(fates, first), 0) < now)
        if found < V.WIDTH:
            at = first + found * V.WIDTH
            return at + V.first_true(V.load(group_of(fates, at), G_DEADLINES) < now)
    return count


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
def fetch_fates(fates: int, count: int) -> None:
    """Asks for the least deadlines of the groups, and for the group that the next open request joins."""
    for first in range(0, count, STRETCH):
        prefetch(stretch_of(fates, first))
    prefetch(group_of(fates, count) + G_DEADLINES * 8)
    prefetch(group_of(fates, count) + G_REQUESTS * 8)
