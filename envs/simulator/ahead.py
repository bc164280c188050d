"""Fetching ahead: while one environment runs, the memory of the next ones comes into the processor's cache.

Environments that are stepped in turn find little of their own state in the cache when there are hundreds of them. What
a step touches for certain is asked for early; that changes no result. Each stage finds in the cache what the one before
it asked for: the header says where the state lies, the state which requests finish, these where their records are.
"""

from __future__ import annotations

from . import layout as L
from .compile import inline
from .memory import ld, ld32, ldc, prefetch
from .slots import batch_keys, engine_at, record_at, slot_at, wake_of

LINE = 64
MOST_WORDS = 1024
"""So much of a state block is asked for: larger clusters take longer than their memory does."""


@inline
def fetch(address: int, size: int) -> None:
    """Asks for `size` bytes."""
    for at in range(0, size, LINE):
        prefetch(address + at)


@inline
def fetch_header(S: int) -> None:
    """Asks for the header of a state block."""
    fetch(S, L.HEADER_WORDS * 8)


@inline
def fetch_state(S: int) -> None:
    """Asks for the state of instances and ledger, and for what the pending and the next request will touch."""
    fetch(S + L.HEADER_WORDS * 8, (min(ldc(S, L.H_O_LEARNER), MOST_WORDS) - L.HEADER_WORDS) * 8)
    fetch(slot_at(S, ld(S, L.H_PENDING)), L.SLOT_BYTES)
    fetch(slot_at(S, ld(S, L.H_FREE_SLOT)), L.SLOT_BYTES)
    request, stride = ld(S, L.H_NEXT), ldc(S, L.H_RECORD_STRIDE)
    fetch(ldc(S, L.H_RECORDS) + (request - 1) * stride, 2 * stride)
    prefetch(ldc(S, L.H_T_ARRIVAL) + request * 8)
    prefetch(ldc(S, L.H_T_PROMPT) + request * 4)
    prefetch(ldc(S, L.H_T_OUTPUT) + request * 4)
    prefetch(ldc(S, L.H_T_SLO) + request)
    prefetch(ldc(S, L.H_T_TTFT) + request * 8)
    prefetch(ldc(S, L.H_T_TPOT) + request * 8)
    prefetch(ldc(S, L.H_LOG) + ld(S, L.H_LOGGED) * 8)


@inline
def acts_soon(S: int, d: int) -> bool:
    """Whether decode instance d has something to do before the request after the pending one arrives."""
    request = min(ld(S, L.H_NEXT), ldc(S, L.H_REQUESTS) - 1)
    return wake_of(S, ldc(S, L.H_PREFILLS) + d) <= ldc(ldc(S, L.H_T_ARRIVAL), request)


@inline
def fetch_batches(S: int) -> None:
    """Asks for the batches of the decode instances that act soon, and for the sequence that finishes first in each."""
    for d in range(ldc(S, L.H_DECODES)):
        if acts_soon(S, d):
            e = engine_at(S, ldc(S, L.H_PREFILLS) + d)
            keys, size = batch_keys(S, d), ld(e, L.E_BATCH) * 8
            fetch(keys, size)
            fetch(keys + ldc(S, L.H_BATCH_STRIDE) * 8, size)
            prefetch(slot_at(S, ld(e, L.E_NEXT_FINISH) & L.KEY_MASK))


@inline
def fetch_finishing(S: int, notes: int, note_size: int) -> None:
    """Asks for the records of these sequences, and for their notes (rows of `note_size` bytes)."""
    for d in range(ldc(S, L.H_DECODES)):
        e = engine_at(S, ldc(S, L.H_PREFILLS) + d)
        if acts_soon(S, d) and ld(e, L.E_BATCH) > 0:
            s = slot_at(S, ld(e, L.E_NEXT_FINISH) & L.KEY_MASK)
            fetch(record_at(S, s), ldc(S, L.H_RECORD_STRIDE))
            prefetch(notes + ld32(s, L.S_REQUEST) * note_size)
