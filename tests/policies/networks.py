"""Networks with random weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disaggroute.policies.network import Network
from disaggroute.policies.network_shape import Shape


def random_network(hidden: Sequence[int], seed: int) -> Network:
    """All weights normal, and such that the units matter about as much as the skip.

    Features of test cases are far below usual ones, so that weights are large.
    """
    shape = Shape(tuple(hidden))
    vector = np.random.default_rng(seed).standard_normal(shape.size).astype(np.float32)
    for name, array in shape.split(vector).items():
        if not name.endswith((".skip", ".out", "second")):
            array *= 30
    return Network.from_vector(shape, vector)


def without_units(network: Network) -> Network:
    """The skip alone."""
    vector = network.vector_of_weights
    for name, array in network.shape.split(vector).items():
        if name.endswith(".out"):
            array[:] = 0
    return Network.from_vector(network.shape, vector)


def network_text(hidden: Sequence[int], seed: int) -> str:
    """The same in words."""
    return str(random_network(hidden, seed))
