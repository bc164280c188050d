"""The decode batch of one engine: who decodes, when the next finishes, when blocks run out.

The batch is an unordered array of keys `finish step << KEY_SHIFT | slot` with, beside it, each sequence's longest
stall so far. A sequence with L = prompt + output that finishes at step F feeds context L − F + s in the step after
s completed ones, so K = Σ(L − F) + B·s needs no look at the sequences; and it takes a new block in the steps σ ≡ 2
− L + F (mod block_size): its phase.
"""

from __future__ import annotations

from . import lanes as V
from . import layout as L
from .arithmetic import leap_time, pick, rarely, udiv
from .compile import inline
from .ledger import decode_row, smallest_but
from .memory import ld, ld32, ldc, st, st32
from .polls import growth_between
from .slots import batch_key, batch_strips, blocks_of, in_block, leap_of, phases_at, slot_at, whole_blocks


@inline
def phase_of(S: int, s: int, finish: int) -> int:
    """Steps σ with σ mod block_size equal to this need a new block for the sequence in slot address s."""
    return in_block(S, finish + 2 - ld32(s, L.S_PROMPT) - ld32(s, L.S_OUTPUT))


@inline
def count_phase(S: int, d: int, phase: int, by: int) -> None:
    """Adds `by` to the prefix counts of all phases ≥ `phase`."""
    phases = phases_at(S, d)
    for r in range(0, ldc(S, L.H_PHASE_STRIDE), L.LANES):
        V.store(phases, r, V.load(phases, r) + V.ones(phase <= V.counting(r)) * by)


@inline
def join_batch(S: int, d: int, e: int, k: int, s: int, finish: int, stall: int) -> None:
    """Slot k decodes from the next step on, and finishes with step `finish`."""
    at = ld(e, L.E_BATCH)
    key = (finish << L.KEY_SHIFT) | k
    own = batch_key(S, d, at)
    st(own, 0, key)
    st(own, L.STRIP, stall)
    st32(s, L.S_NEXT, at)
    st(s, L.SW_FINISH, finish)
    st(e, L.E_BATCH, at + 1)
    st(e, L.E_BASE, ld(e, L.E_BASE) + ld32(s, L.S_PROMPT) + ld32(s, L.S_OUTPUT) - finish)
    st(e, L.E_NEXT_FINISH, min(ld(e, L.E_NEXT_FINISH), key))
    count_phase(S, d, phase_of(S, s, finish), 1)


@inline
def leave_batch(S: int, d: int, e: int, s: int) -> int:
    """Takes a sequence out of the batch; returns its longest stall. The caller settles blocks and ledger."""
    at = ld32(s, L.S_NEXT)
    last = ld(e, L.E_BATCH) - 1
    own, end = batch_key(S, d, at), batch_key(S, d, last)
    key = ld(own, 0)
    stall = ld(own, L.STRIP)
    moved = ld(end, 0)
    if ld(e, L.E_NEXT_FINISH) == key:
        st(e, L.E_NEXT_FINISH, smallest_but(S, batch_strips(S, d), last + 1, at))
    st(own, 0, moved)
    st(own, L.STRIP, ld(end, L.STRIP))
    st32(slot_at(S, moved & L.KEY_MASK), L.S_NEXT, at)
    st(end, 0, L.FOREVER)
    st(e, L.E_BATCH, last)
    finish = key >> L.KEY_SHIFT
    st(e, L.E_BASE, ld(e, L.E_BASE) - ld32(s, L.S_PROMPT) - ld32(s, L.S_OUTPUT) + finish)
    count_phase(S, d, phase_of(S, s, finish), -1)
    return stall


@inline
def growth_at(S: int, d: int, step: int) -> int:
    """Blocks that the batch needs in the pass for `step`."""
    phases = phases_at(S, d)
    r = in_block(S, step)
    below = ld(phases, max(r - 1, 0)) & ((-r) >> 63)
    return ld(phases, r) - below


@inline
def first_overflow(S: int, d: int, batch: int, free: int, step: int, steps: int) -> int:
    """Steps until the pass that runs out of blocks, or `steps` if that comes first; `step` has its blocks.

    Each whole cycle of block_size steps takes B blocks, so after ⌊free / B⌋ cycles less than B are left, and the phases
    are walked for at most one cycle more.
    """
    size = ldc(S, L.H_BLOCK)
    if (whole_blocks(S, steps) + 1) * batch <= free:
        return steps
    cycles = udiv(free, batch)
    left = free - cycles * batch
    for j in range(1, size + 1):
        if growth_between(S, d, batch, step, step + j) > left:
            return min(steps, cycles * size + j)
    return steps


@inline
def advance(S: int, d: int, e: int, made: int) -> None:
    """Applies `made` ≥ 1 completed steps of the running leap: blocks taken, stalls, ledger, step count."""
    batch = ld(e, L.E_BATCH)
    leap = leap_of(S, d)
    step, first, growth = ld(leap, L.LEAP_DONE), ld(leap, L.LEAP_FIRST), ld(leap, L.LEAP_GROWTH)
    if batch > 0:
        st(e, L.E_FREE, ld(e, L.E_FREE) - growth_between(S, d, batch, step + 1, step + made))
        longest = first + growth * (made - 1)  # the last step
        stalls = batch_strips(S, d) + L.STRIP * 8
        stalled = V.spread(longest)
        for _ in range(0, batch, L.STRIP):  # beyond the batch there is nothing to spoil
            V.store(stalls, 0, V.maximum(V.load(stalls, 0), stalled))
            V.store(stalls, 8, V.maximum(V.load(stalls, 8), stalled))
            V.store(stalls, 16, V.maximum(V.load(stalls, 16), stalled))
            V.store(stalls, 24, V.maximum(V.load(stalls, 24), stalled))
            stalls += ldc(S, L.H_STRIP_STRIDE) * 8
        for at in range(pick(made == 1, ld(e, L.E_OLD), batch), batch):  # the first step is no stall for who joined
            own = batch_key(S, d, at)
            s = slot_at(S, ld(own, 0) & L.KEY_MASK)
            st(own, L.STRIP, first_stall(s, ld(leap, L.LEAP_START) + first))
        for router in range(ldc(S, L.H_ROUTERS)):
            settle_fresh(S, router, d)
    st(leap, L.LEAP_DONE, step + made)
    st(leap, L.LEAP_START, ld(leap, L.LEAP_START) + leap_time(first, growth, made))
    st(leap, L.LEAP_STEPS, ld(leap, L.LEAP_STEPS) - made)


@inline
def first_stall(s: int, t: int) -> int:
    """How long a request that joined waited for its token at t: since the prefill's token, if it had one."""
    return t - ld(s, L.SW_LAST) if rarely(ld32(s, L.S_GENERATED) != 0) else 0


@inline
def settle_fresh(S: int, router: int, d: int) -> None:
    """The requests that joined with the leap have their first token: they no longer pend."""
    row = decode_row(S, router, d)
    st(row, L.DEC_PENDING, ld(row, L.DEC_PENDING) - ld(row, L.DEC_FRESH))
    st(row, L.DEC_FRESH, 0)


@inline
def held_blocks(S: int, s: int, step: int) -> int:
    """Blocks that a decoding sequence holds after `step`."""
    tokens = ld32(s, L.S_PROMPT) + ld32(s, L.S_OUTPUT) - ld(s, L.SW_FINISH) + step - 1
    return blocks_of(S, tokens)
