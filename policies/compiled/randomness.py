"""Random numbers of the compiled policies: splitmix64 (Steele, Lea, Flood 2014), one state word per router."""

from __future__ import annotations

import numpy as np

from ...envs.simulator.compile import inline
from ...envs.simulator.memory import ld, st


@inline
def next_word(state: int) -> int:
    """The next 64 random bits of the generator whose state word is at `state`."""
    x = np.uint64(ld(state, 0)) + np.uint64(0x9E3779B97F4A7C15)
    st(state, 0, np.int64(x))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))  # type: ignore[return-value]


@inline
def below(state: int, n: int) -> int:
    """A random integer in [0, n), n < 2^31, from the upper 32 bits of one word."""
    return np.int64((np.uint64(next_word(state)) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32))  # type: ignore[return-value]
