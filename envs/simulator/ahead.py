"""Fetching ahead: while one environment runs, the memory of the next ones comes into the processor's cache.

Environments that are stepped in turn find little of their own state in the cache when there are hundreds of them. What
a step touches for certain is asked for early; that changes no result. Each stage finds in the cache what the one before
it asked for: the header says where the state lies, the state which instances act. It pays to be no earlier, for the
nearest cache holds the state of a few environments; most of what is only written is not asked for.
"""

from __future__ import annotations

from . import layout as L
from . import ledger
from .compile import inline
from .deadlines import fetch_fates, fetch_passing, fetch_request
from .learner import fetch_expected
from .memory import ld, ldc, prefetch
from .slots import (
    batch_strips,
    engine_at,
    entry_at,
    leap_of,
    phases_at,
    region,
    slot_at,
    trace_row,
    wake_of,
)

LINE = 64
PAGE = 4096
MOST_WORDS = 1024
"""So much of a state block is asked for: larger clusters take longer than their memory does."""

STEPS_AHEAD = 3
"""Steps that a decode instance makes at most, usually, between two decisions."""


@inline
def fetch(address: int, size: int) -> None:
    """Asks for `size` bytes."""
    for at in range(0, size, LINE):
        prefetch(address + at)


@inline
def fetch_header(S: int) -> None:
    """Asks for the header of a state block, up to the routers' last admissions, and for its second page."""
    fetch(S, L.H_LAST * 8 + LINE)
    prefetch(S + PAGE)


@inline
def fetch_state(S: int) -> None:
    """Asks for the state of instances and ledger, and for what the pending and the next request will touch."""
    fetch(S + L.HEADER_WORDS * 8, (min(ldc(S, L.H_O_PHASES), MOST_WORDS) - L.HEADER_WORDS) * 8)
    pending, free = ld(S, L.H_PENDING), ld(S, L.H_FREE_SLOT)
    fetch_request(S, pending)
    fetch_request(S, free)
    fetch_fates(S, pending)
    fetch(trace_row(S, ld(S, L.H_NEXT) - 1), 2 * L.TRACE_WORDS * 8)
    fetch(entry_at(S, 0), L.ENTRY_WORDS * 8)
    prefetch(region(S, L.H_O_LEARNER) + L.LEARNER_ALL * 8)


@inline
def next_request(S: int) -> int:
    """The request after the pending one: it is likely the next to be decided on."""
    return min(ld(S, L.H_NEXT), ldc(S, L.H_REQUESTS) - 1)


@inline
def acts_soon(S: int, d: int, t: int) -> bool:
    """Whether decode instance d has something to do by t."""
    return wake_of(S, ldc(S, L.H_PREFILLS) + d) <= t


@inline
def crosses_soon(S: int, d: int) -> bool:
    """Whether a stream on decode instance d is about to pass its predicted length (ledger of the first router)."""
    step = ld(ledger.decode_row(S, 0, d), L.DEC_CROSS_MIN) >> L.KEY_SHIFT
    return step < ld(leap_of(S, d), L.LEAP_NOW) + STEPS_AHEAD


@inline
def fetch_acting(S: int) -> None:
    """Asks for what the instances touch that act soon: the heads of their lists, batches and crossings."""
    request = next_request(S)
    t = ldc(trace_row(S, request), L.T_ARRIVAL)
    fetch_expected(S, request)
    fetch_passing(S, t)
    for p in range(ldc(S, L.H_PREFILLS)):
        e = engine_at(S, p)
        prefetch(slot_at(S, ld(e, L.E_QUEUE)))
        prefetch(slot_at(S, ld(e, L.E_CHUNKS)))
        prefetch(slot_at(S, ld(e, L.E_RELEASE)))
    for d in range(ldc(S, L.H_DECODES)):
        if acts_soon(S, d, t):
            e = engine_at(S, ldc(S, L.H_PREFILLS) + d)
            strips = batch_strips(S, d)
            for _ in range(0, ld(e, L.E_BATCH), L.STRIP):
                fetch(strips, 2 * L.STRIP * 8)
                strips += ldc(S, L.H_STRIP_STRIDE) * 8
            fetch(phases_at(S, d), ldc(S, L.H_PHASE_STRIDE) * 8)
            k = ld(e, L.E_NEXT_FINISH) & L.KEY_MASK
            fetch_request(S, k)
            prefetch(slot_at(S, ld(e, L.E_HOLD)))
        if crosses_soon(S, d):
            row = ledger.decode_row(S, 0, d)
            prefetch(slot_at(S, ld(row, L.DEC_CROSS_MIN) & L.KEY_MASK))
            strips = ledger.crossing_strips(S, 0, d)
            for _ in range(0, ld(row, L.DEC_CROSS_COUNT), L.STRIP):
                fetch(strips, L.STRIP * 8)
                strips += ldc(S, L.H_STRIP_STRIDE) * 8
