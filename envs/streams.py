"""Independent random streams, one per purpose, from one seed.

Adding draws to one stream never changes another: `stream(seed, "arrivals")` is the child of
`SeedSequence(seed)` that `SeedSequence.spawn` would give at the purpose's place in PURPOSES.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Purpose = Literal["arrivals", "bursts", "families", "prompts", "outputs", "classes", "noise", "spread", "routers"]

PURPOSES: tuple[str, ...] = get_args(Purpose)
"""Append only: the place of a purpose is part of every published number."""


LARGEST_SEED = (1 << 63) - 1


def checked_seed(seed: object) -> int:
    """The seed of a trace as a Python integer.

    Raises:
        ValueError: it is no integer, negative, or does not fit 63 bits.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed is {seed!r}; it must be an integer from 0 to 2^63 − 1")
    return int(seed)


def stream(seed: int, purpose: Purpose) -> np.random.Generator:
    """The generator for one purpose.

    Args:
        seed: ≥ 0.
        purpose: what is drawn from it.

    Raises:
        ValueError: the seed is negative or no integer.
    """
    return np.random.default_rng(np.random.SeedSequence(natural(seed), spawn_key=(PURPOSES.index(purpose),)))


def natural(seed: int) -> int:
    """The seed as a Python integer.

    Raises:
        ValueError: it is negative or no integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed is {seed!r}; it must be an integer of at least 0")
    return int(seed)
