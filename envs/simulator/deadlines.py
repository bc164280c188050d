"""Which misses are certain: a heap of deadlines, one entry per request.

A request that has no token by arrival + TTFT target has missed it; one whose first token came in time misses its TPOT
target once more than (o − 1) · target has passed since. An entry that comes up is judged by the request's record: it
leaves, or waits for the request's next deadline. Requests that end are judged by their whole record.
"""

from __future__ import annotations

from . import layout as L
from .compile import inline
from .memory import ld, ld16, ldc, ldc32, st

FINISHED_STATUS = 0


@inline
def push(heap: int, size: int, deadline: int, request: int) -> None:
    """Adds an entry to a binary heap of (deadline, request) pairs that holds `size` of them."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        other = ld(heap, 2 * parent)
        if other <= deadline:
            break
        st(heap, 2 * at, other)
        st(heap, 2 * at + 1, ld(heap, 2 * parent + 1))
        at = parent
    st(heap, 2 * at, deadline)
    st(heap, 2 * at + 1, request)


@inline
def sift_down(heap: int, size: int, deadline: int, request: int) -> None:
    """Puts an entry in the place of the first of a heap of `size` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and ld(heap, 2 * child + 2) < ld(heap, 2 * child):
            child += 1
        other = ld(heap, 2 * child)
        if deadline <= other:
            break
        st(heap, 2 * at, other)
        st(heap, 2 * at + 1, ld(heap, 2 * child + 1))
        at = child
    st(heap, 2 * at, deadline)
    st(heap, 2 * at + 1, request)


@inline
def record_of(S: int, request: int) -> int:
    """Address of the record row of a request of the trace."""
    return ldc(S, L.H_RECORDS) + request * ldc(S, L.H_RECORD_STRIDE)


@inline
def arrival_of(S: int, request: int) -> int:
    """Arrival of a request of the trace, ps."""
    return ldc(ldc(S, L.H_T_ARRIVAL), request)


@inline
def first_deadline(S: int, request: int) -> int:
    """When a request misses its TTFT target, ps."""
    return arrival_of(S, request) + ldc(ldc(S, L.H_T_TTFT), request)


@inline
def decode_span(S: int, request: int) -> int:
    """Longest time between its first and last token, ps: (o − 1) · TPOT target."""
    return (ldc32(ldc(S, L.H_T_OUTPUT), request) - 1) * ldc(ldc(S, L.H_T_TPOT), request)


@inline
def next_deadline(S: int, request: int) -> int:
    """The deadline that a request in flight has now, ps: TTFT's, or TPOT's once the first token is known in time.

    The core may know a first token before its time (it ends a step that has begun); it lies before TTFT's deadline then
    as well.
    """
    deadline = first_deadline(S, request)
    token = ld(record_of(S, request), L.R_FIRST_TOKEN)
    return deadline if token < 0 or token > deadline else token + decode_span(S, request)


@inline
def met_targets(S: int, request: int) -> bool:
    """Whether a request that has ended met both targets."""
    row = record_of(S, request)
    token = ld(row, L.R_FIRST_TOKEN)
    in_time = ld16(row, L.R16_STATUS) == FINISHED_STATUS and token <= first_deadline(S, request)
    return in_time and ld(row, L.R_LAST_TOKEN) - token <= decode_span(S, request)
