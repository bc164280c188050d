"""Addresses of the core's regions, and the lists that requests in flight move through.

Every request in flight is one slot; a list is a head and a tail in an engine row, followed by its length, and links in
the slots. Slots are named by their number, −1 means none.
"""

from __future__ import annotations

from . import layout as L
from .arithmetic import lowest_bit, pick, rarely, udiv
from .compile import inline, rare
from .memory import ld, ld32, ldc, st, st32


@inline
def region(S: int, offset: int) -> int:
    """Address of the region whose word offset is header field `offset`."""
    return S + ldc(S, offset) * 8


@inline
def whole_blocks(S: int, n: int) -> int:
    """⌊n / block_size⌋; by a shift where that is possible."""
    shift = ldc(S, L.H_BLOCK_SHIFT)
    return udiv(n, ldc(S, L.H_BLOCK)) if rarely(shift < 0) else n >> shift


@inline
def in_block(S: int, n: int) -> int:
    """N mod block_size, ≥ 0 also for a negative n."""
    size = ldc(S, L.H_BLOCK)
    return n % size if rarely(ldc(S, L.H_BLOCK_SHIFT) < 0) else n & (size - 1)


@inline
def blocks_of(S: int, tokens: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return whole_blocks(S, tokens + ldc(S, L.H_BLOCK) - 1)


@inline
def slot_at(S: int, k: int) -> int:
    """Address of slot k."""
    return region(S, L.H_O_SLOTS) + k * ldc(S, L.H_SLOT_BYTES)


@inline
def engine_at(S: int, i: int) -> int:
    """Address of the row of engine i (prefill instances first)."""
    return region(S, L.H_O_ENGINES) + i * (L.ENGINE_WORDS * 8)


@inline
def grouped(base: int, group: int, i: int) -> int:
    """Address of instance i's first word in rows grouped by eight, `group` words a group."""
    return base + ((i >> 3) * group + (i & 7)) * 8


@inline
def leap_of(S: int, d: int) -> int:
    """Address of the leap (LEAP_…) of decode instance d."""
    return grouped(region(S, L.H_O_LEAP), L.LEAP_GROUP, d)


@inline
def in_strips(S: int, first: int, at: int) -> int:
    """Address of element `at` of an array whose first strip is at the address `first`."""
    return first + ((at >> L.STRIP_SHIFT) * ldc(S, L.H_STRIP_STRIDE) + (at & (L.STRIP - 1))) * 8


@inline
def batch_strips(S: int, d: int) -> int:
    """Address of the first strip of batch keys of decode instance d; behind each strip stand the sequences' stalls."""
    return region(S, L.H_O_BATCH) + d * (2 * L.STRIP * 8)


@inline
def batch_key(S: int, d: int, at: int) -> int:
    """Address of the key of the sequence at place `at` of the batch; its stall is STRIP words further."""
    return in_strips(S, batch_strips(S, d), at)


@inline
def phases_at(S: int, d: int) -> int:
    """Address of the prefix counts over block phases of decode instance d."""
    return region(S, L.H_O_PHASES) + d * ldc(S, L.H_PHASE_STRIDE) * 8


@inline
def trace_row(S: int, request: int) -> int:
    """Address of the trace row (T_…) of a request."""
    return ldc(S, L.H_TRACE) + request * (L.TRACE_WORDS * 8)


@inline
def record_of(S: int, request: int) -> int:
    """Address of the record row of a request of the trace, where records are kept."""
    return ldc(S, L.H_RECORDS) + request * ldc(S, L.H_RECORD_STRIDE)


@inline
def record_at(S: int, s: int) -> int:
    """Address of the record row of the request in slot address s, which is in flight.

    Where records are not kept, it lies behind the slot: hundreds of clusters that take turns touch fewer pages so.
    """
    if ldc(S, L.H_ROWS) != 0:
        return s + L.SLOT_BYTES
    return record_of(S, ld32(s, L.S_REQUEST))


@inline
def entry_at(S: int, n: int) -> int:
    """Address of entry n of what a step tells of."""
    return ldc(S, L.H_ENTRIES) - (n + 1) * (L.ENTRY_WORDS * 8)


@inline
def end_record(S: int, s: int, t: int) -> int:
    """Address for the record row of the request in slot address s, which ends at t; it is in the log now."""
    n = ld(S, L.H_LOGGED)
    if ldc(S, L.H_ROWS) != 0:
        st(S, L.H_LOGGED, n + 1)
        entry, row = entry_at(S, n), record_at(S, s)
        st(entry, L.N_ENDED, ld32(s, L.S_REQUEST))
        copy_row(entry, row)
        return entry
    log = ldc(S, L.H_LOG)
    if rarely(log != 0):
        st(log, n, ld32(s, L.S_REQUEST))
        st(S, L.H_LOGGED, n + 1)
    return record_at(S, s)


@inline
def copy_row(to: int, row: int) -> None:
    """Copies a row of ROW_WORDS.

    Word by word: words that were just written can be read at once, a vector of them only when they have got through.
    """
    st(to, 0, ld(row, 0))
    st(to, 1, ld(row, 1))
    st(to, 2, ld(row, 2))
    st(to, 3, ld(row, 3))
    st(to, 4, ld(row, 4))
    st(to, 5, ld(row, 5))
    st(to, 6, ld(row, 6))
    st(to, 7, ld(row, 7))
    st(to, 8, ld(row, 8))
    st(to, 9, ld(row, 9))
    st(to, 10, ld(row, 10))
    st(to, 11, ld(row, 11))
    st(to, 12, ld(row, 12))
    st(to, 13, ld(row, 13))
    st(to, 14, ld(row, 14))
    st(to, 15, ld(row, 15))


@inline
def set_wake(S: int, i: int, t: int) -> None:
    """Engine i has something to do at t.

    Wake-up times are the leaves of a winner tree; a node holds the earliest time below it and whose it is, the left
    child winning ties.
    """
    leaves = ldc(S, L.H_WAKE_PAD)
    times = region(S, L.H_O_WAKE)
    owners = times + leaves * 16
    node = leaves + i
    owner = i
    st(times, node, t)
    while node > 1:
        rival = node ^ 1
        rival_time = ld(times, rival)
        loses = rival_time - (node & 1) < t
        t = pick(loses, rival_time, t)
        owner = pick(loses, ld(owners, rival), owner)
        node >>= 1
        st(times, node, t)
        st(owners, node, owner)


@inline
def wake_of(S: int, i: int) -> int:
    """When engine i has something to do."""
    return ld(region(S, L.H_O_WAKE), ldc(S, L.H_WAKE_PAD) + i)


@inline
def earliest_wake(S: int) -> int:
    """When the first engine has something to do."""
    return ld(region(S, L.H_O_WAKE), 1)


@inline
def earliest_engine(S: int) -> int:
    """The engine that has something to do first; of several the lowest index."""
    return ld(region(S, L.H_O_WAKE) + ldc(S, L.H_WAKE_PAD) * 16, 1)


@inline
def prefill_of(place: int) -> int:
    """Prefill instance in a packed S_PLACE."""
    return place & L.PLACE_MASK


@inline
def decode_of(place: int) -> int:
    """Decode instance in a packed S_PLACE."""
    return (place >> L.PLACE_BITS) & L.PLACE_MASK


@inline
def router_of(place: int) -> int:
    """Router in a packed S_PLACE."""
    return (place >> L.ROUTER_SHIFT) & L.ROUTER_MASK


@inline
def push_back(S: int, e: int, head: int, k: int) -> None:
    """Appends slot k to the list at field `head` of engine row e."""
    st32(slot_at(S, k), L.S_NEXT, -1)
    tail = ld(e, head + 1)
    if tail < 0:
        st(e, head, k)
    else:
        st32(slot_at(S, tail), L.S_NEXT, k)
    st(e, head + 1, k)
    st(e, head + 2, ld(e, head + 2) + 1)


@inline
def push_front(S: int, e: int, head: int, k: int) -> None:
    """Puts slot k at the head of the list."""
    first = ld(e, head)
    st32(slot_at(S, k), L.S_NEXT, first)
    if first < 0:
        st(e, head + 1, k)
    st(e, head, k)
    st(e, head + 2, ld(e, head + 2) + 1)


@inline
def pop_front(S: int, e: int, head: int) -> int:
    """Takes the head of a list that is not empty."""
    k = ld(e, head)
    after = ld32(slot_at(S, k), L.S_NEXT)
    st(e, head, after)
    if after < 0:
        st(e, head + 1, -1)
    st(e, head + 2, ld(e, head + 2) - 1)
    return k


@rare
def remove(S: int, e: int, head: int, k: int) -> None:
    """Takes slot k out of the list, wherever it stands."""
    before, here = -1, ld(e, head)
    while here != k:
        before, here = here, ld32(slot_at(S, here), L.S_NEXT)
    after = ld32(slot_at(S, k), L.S_NEXT)
    if before < 0:
        st(e, head, after)
    else:
        st32(slot_at(S, before), L.S_NEXT, after)
    if after < 0:
        st(e, head + 1, before)
    st(e, head + 2, ld(e, head + 2) - 1)


@inline
def take_slot(S: int) -> int:
    """A slot for one more request; the caller has made sure that one is free."""
    st(S, L.H_LIVE, ld(S, L.H_LIVE) + 1)
    k = ld(S, L.H_FREE_SLOT)
    marks = ldc(S, L.H_MARKS)
    if marks != 0:
        word = k >> 6
        left = ld(marks, word) & ~(1 << (k & 63))
        st(marks, word, left)
        left &= -1 << (k & 63)
        if left == 0:
            st(S, L.H_FREE_SLOT, next_free(S, marks, word))
        else:
            st(S, L.H_FREE_SLOT, word * 64 + lowest_bit(left))
        return k
    if k >= 0:
        st(S, L.H_FREE_SLOT, ld32(slot_at(S, k), L.S_NEXT))
        return k
    k = ld(S, L.H_HIGH)
    st(S, L.H_HIGH, k + 1)
    return k


@rare
def next_free(S: int, marks: int, word: int) -> int:
    """The next free slot behind a word of marks, then from the first on; if there is none, more come into use.

    Requests that arrive one after the other get slots beside each other, as far as these are free: what happens to them
    happens at about the same time, and then touches few pages.
    """
    words = ld(S, L.H_HIGH) >> 6
    for _ in range(words):
        word = word + 1 if word + 1 < words else 0
        if ld(marks, word) != 0:
            return word * 64 + lowest_bit(ld(marks, word))
    if ld(S, L.H_HIGH) == ldc(S, L.H_CAPACITY):
        return -1
    st(marks, words, -1)
    st(S, L.H_HIGH, (words + 1) * 64)
    return words * 64


@inline
def recycle(S: int, k: int) -> None:
    """Gives slot k back."""
    st(S, L.H_LIVE, ld(S, L.H_LIVE) - 1)
    marks = ldc(S, L.H_MARKS)
    if marks != 0:
        st(marks, k >> 6, ld(marks, k >> 6) | (1 << (k & 63)))
        if rarely(ld(S, L.H_FREE_SLOT) < 0):
            st(S, L.H_FREE_SLOT, k)
        return
    st32(slot_at(S, k), L.S_NEXT, ld(S, L.H_FREE_SLOT))
    st(S, L.H_FREE_SLOT, k)
