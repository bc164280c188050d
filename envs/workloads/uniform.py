"""The uniform numbers of `streams.stream`, in compiled code: the same bits, without an object per stream.

NumPy seeds a generator by hashing (`SeedSequence`; after M. E. O'Neill, "Developing a seed_seq Alternative", 2015) and
draws from PCG-XSL-RR 128/64 (M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms
for Random Number Generation", 2014). Both are fixed: NumPy promises these streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..simulator.arithmetic import high_product
from ..simulator.compile import entry, inline
from ..streams import PURPOSES, Purpose

Words = npt.NDArray[np.uint32]
State = tuple[Any, Any, Any, Any]
"""High and low half of the state and of the increment, uint64."""

POOL = 4
"""Words of the pool that a seed is hashed into."""

_FIRST, _FACTOR = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
_SECOND, _SECOND_FACTOR = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_MULTIPLIER = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_PER_STEP = 1.0 / (1 << 53)


def seed_words(seed: int, purposes: Sequence[Purpose]) -> Words:
    """What the stream of a seed (≥ 0) and each purpose is hashed from, one row per purpose."""
    seed = int(seed)
    words = [seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    words += [0] * (POOL - len(words))
    return np.array([[*words, PURPOSES.index(purpose)] for purpose in purposes], np.uint32)


@inline
def _hashed(value: Any, constant: Any) -> Any:
    """A word, hashed with the constant and the next one."""
    value = np.uint32(value * constant)
    return np.uint32(value ^ (value >> np.uint32(16)))


@inline
def _mixed(a: Any, b: Any) -> Any:
    """Two words in one."""
    value = np.uint32(_LEFT * a - _RIGHT * b)
    return np.uint32(value ^ (value >> np.uint32(16)))


@inline
def begin(words: Words) -> State:
    """The generator of these seed words."""
    pool = np.empty(POOL, np.uint32)
    constant = _FIRST
    for k in range(POOL):
        value = np.uint32(words[k] ^ constant)
        constant = np.uint32(constant * _FACTOR)
        pool[k] = _hashed(value, constant)
    for source in range(len(words)):
        for k in range(POOL):
            if source != k:
                value = np.uint32((pool[source] if source < POOL else words[source]) ^ constant)
                constant = np.uint32(constant * _FACTOR)
                pool[k] = _mixed(pool[k], _hashed(value, constant))
    halves = np.empty(2 * POOL, np.uint64)
    constant = _SECOND
    for k in range(2 * POOL):
        value = np.uint32(pool[k % POOL] ^ constant)
        constant = np.uint32(constant * _SECOND_FACTOR)
        halves[k] = np.uint64(_hashed(value, constant))
    shift = np.uint64(32)
    high, low = halves[0] | (halves[1] << shift), halves[2] | (halves[3] << shift)
    inc_high, inc_low = halves[4] | (halves[5] << shift), halves[6] | (halves[7] << shift)
    one = np.uint64(1)
    inc_high, inc_low = (inc_high << one) | (inc_low >> np.uint64(63)), (inc_low << one) | one
    sum_low = inc_low + low  # the first step leads from 0 to the increment
    sum_high = inc_high + high + np.uint64(sum_low < low)
    return step((sum_high, sum_low, inc_high, inc_low))


@inline
def step(state: State) -> State:
    """The next state."""
    high, low, inc_high, inc_low = state
    by_high, by_low = _MULTIPLIER
    product = low * by_low
    next_high = high * by_low + low * by_high + high_product(low, by_low)
    next_low = product + inc_low
    return next_high + inc_high + np.uint64(next_low < product), next_low, inc_high, inc_low


@entry
def numbers(words: Words, found: npt.NDArray[np.float64]) -> None:
    """Writes the first numbers of the stream of these seed words."""
    state = begin(words)
    for k in range(len(found)):
        state = step(state)
        found[k] = uniform(state)


@inline
def word(state: State) -> Any:
    """The uint64 of a state that was stepped to."""
    value, turn = state[0] ^ state[1], state[0] >> np.uint64(58)
    return (value >> turn) | (value << ((np.uint64(64) - turn) & np.uint64(63)))


@inline
def uniform(state: State) -> float:
    """The number in [0, 1) of a state that was stepped to."""
    return np.float64(word(state) >> np.uint64(11)) * _PER_STEP
