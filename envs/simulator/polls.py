"""Polls: what an engine reports of itself, stale until the next tick (docs/model.md, "Polls").

A decision sees the poll at H_VISIBLE, so only that tick is ever read. An engine's state is noted the first time that
something changes it at or after that tick, or when a decision asks; in between the state is the same.
"""

from __future__ import annotations

from . import layout as L
from .arithmetic import rarely, steps_within
from .compile import inline, rare
from .memory import ld, ld32, ldc, st
from .slots import blocks_of, leap_of, phases_at, slot_at, whole_blocks


@inline
def before_change(S: int, i: int, e: int, t: int) -> None:
    """Must be called before anything changes engine i (row e) at t."""
    tick = ld(S, L.H_VISIBLE)
    if t >= tick and ld(e, L.E_POLLED) < tick:
        poll(S, i, e, tick)


@inline
def refresh(S: int, i: int, e: int) -> None:
    """Makes the poll fields of engine i those of the visible tick."""
    tick = ld(S, L.H_VISIBLE)
    if ld(e, L.E_POLLED) < tick:
        poll(S, i, e, tick)


@rare
def poll(S: int, i: int, e: int, tick: int) -> None:
    """Notes what engine i reports at `tick`: its state just before that instant."""
    st(e, L.E_POLLED, tick)
    if rarely(ld(e, L.E_STATE) == L.STATE_DOWN):
        st(e, L.E_POLL_USED, 0)
        st(e, L.E_POLL_RUNNING, 0)
        st(e, L.E_POLL_WAITING, 0)
        return
    used = ldc(ldc(e, L.E_SPEC), L.P_BLOCKS) - ld(e, L.E_FREE)
    prefills = ldc(S, L.H_PREFILLS)
    if i < prefills:
        k = ld(e, L.E_RELEASE)
        while k >= 0 and ld(slot_at(S, k), L.SW_TRANSFER) < tick:
            used -= blocks_of(S, ld32(slot_at(S, k), L.S_PROMPT))
            k = ld32(slot_at(S, k), L.S_RELEASE)
    elif ld(e, L.E_BUSY) != 0:
        d = i - prefills
        made = growth_passes_before(S, d, tick)
        step = ld(leap_of(S, d), L.LEAP_DONE) + 1
        used += growth_between(S, d, ld(e, L.E_BATCH), step, step + made)
    st(e, L.E_POLL_USED, used)
    st(e, L.E_POLL_RUNNING, ld(e, L.E_BATCH) + ld(e, L.E_CHUNKED))
    st(e, L.E_POLL_WAITING, ld(e, L.E_QUEUED) + ld(e, L.E_HELD))


@inline
def growth_passes_before(S: int, d: int, t: int) -> int:
    """Inner boundaries of the leap of instance d that lie before t (each allots blocks)."""
    x = t - 1 - ld(leap_of(S, d), L.LEAP_START)
    if x < 0:
        return 0
    made = steps_within(ld(leap_of(S, d), L.LEAP_FIRST), ld(leap_of(S, d), L.LEAP_GROWTH), x)
    return min(made, ld(leap_of(S, d), L.LEAP_STEPS) - 1)


@inline
def growth_between(S: int, d: int, batch: int, low: int, high: int) -> int:
    """Blocks that the batch of instance d takes in the passes for steps low + 1 … high.

    A sequence takes one in every block_size-th step; with N(r) sequences of phase ≤ r, the passes up to step σ take
    ⌊σ / block_size⌋·B + N(σ mod block_size), up to a constant.
    """
    size = ldc(S, L.H_BLOCK)
    phases = phases_at(S, d)
    above, below = whole_blocks(S, high), whole_blocks(S, low)
    return (above - below) * batch + ld(phases, high - above * size) - ld(phases, low - below * size)
