"""Networks with random weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disaggroute.policies.network import Network
from disaggroute.policies.network_shape import Shape


def random_network(hidden: Sequence[int], seed: int, skip: float = 1.0) -> Network:
    """All weights normal; those of the skip times `skip`.

    Features of test cases are far below usual ones, so that weights are large.
    """
    shape = Shape(tuple(hidden))
    vector = 30 * np.random.default_rng(seed).standard_normal(shape.size).astype(np.float32)
    for name, array in shape.split(vector).items():
        if name.endswith(".skip"):
            array *= skip
        if name.endswith(".out"):
            array *= 0.03
    return Network.from_vector(shape, vector)


def network_text(hidden: Sequence[int], seed: int) -> str:
    """The same in words."""
    return str(random_network(hidden, seed))
