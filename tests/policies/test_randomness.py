"""Random numbers of the compiled policies."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from disaggroute.policies.compiled.randomness import below, next_word
from disaggroute.policies.compiled_policy import WORD_RANDOM, initial_state

from .plain import SplitMix

PUBLISHED = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
}
"""First outputs of the authors' splitmix64 by seed."""


@numba.njit
def word(address: int) -> int:
    """Inner functions of the core can only be called from compiled code."""
    return next_word(address)


@numba.njit
def draw(address: int, n: int) -> int:
    return below(address, n)


@pytest.mark.parametrize("seed", PUBLISHED)
def test_the_words_are_those_of_the_published_generator(seed: int) -> None:
    state = np.array([seed], np.int64)
    words = [int(np.uint64(word(state.ctypes.data))) for _ in PUBLISHED[seed]]
    assert words == PUBLISHED[seed]


def test_the_words_wrap_around_like_unsigned_64_bit_numbers() -> None:
    plain = SplitMix(2**64 - 3)
    state = np.array([-3], np.int64)
    for _ in range(100):
        assert int(np.uint64(word(state.ctypes.data))) == plain.next()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 4096])
def test_draws_below_n_come_from_the_upper_half_of_a_word(n: int) -> None:
    plain, state = SplitMix(n), np.array([n], np.int64)
    draws = [draw(state.ctypes.data, n) for _ in range(200)]
    assert draws == [plain.below(n) for _ in range(200)]
    assert min(draws) >= 0 and max(draws) < n


def test_every_router_and_every_seed_has_a_stream_of_its_own() -> None:
    words = [int(row[WORD_RANDOM]) for seed in range(50) for row in initial_state(seed)]
    assert len(set(words)) == len(words)


def test_a_seed_gives_the_same_state_again_and_random_numbers_only() -> None:
    state = initial_state(5)
    assert (state == initial_state(5)).all()
    state[:, WORD_RANDOM] = 0
    assert not state.any()
