"""The scorer of the policy `network`, as it is trained."""

from __future__ import annotations

import numpy as np

from ...policies.linear import Linear
from ...policies.network import Network
from ...policies.network_shape import Float32s, Shape
from ...policies.network_torch import Scorer
from ...policies.policy import Policy

AGENTS_STAGES = ("prefill", "decode")
"""What agents are trained on; clusters of mixed instances are refused."""


class NetworkScorer(Scorer):
    """A network that begins with random weights or with a policy.

    Args:
        hidden: widths of the hidden layers; None: those of `start`, or the default ones.
        start: a network, or a linear policy whose weights become the skip; None: random weights.
        seed: draws what is random.

    Raises:
        ValueError: another policy, or a network with other layers.
    """

    def __init__(self, hidden: tuple[int, ...] | None, start: Policy | None, seed: int) -> None:
        wanted = None if hidden is None else Shape(hidden)
        if start is None:
            shape = wanted or Shape()
            vector = random_weights(shape, np.random.default_rng(seed))
        elif isinstance(start, Linear):
            network = Network.from_linear(start, wanted, seed)
            shape, vector = network.shape, network.vector_of_weights
        elif isinstance(start, Network):
            shape, vector = start.shape, start.vector_of_weights
            if wanted is not None and wanted != shape:
                raise ValueError(
                    f"policy.hidden is {list(wanted.hidden)}, but policy.start has {list(shape.hidden)}; leave it out"
                )
        else:
            raise ValueError(f"policy.start is {start}; a network begins with a network or a linear policy")
        super().__init__(shape, vector)

    def policy(self) -> Policy:
        """The policy `network` with these weights."""
        return Network.from_vector(self.shape, self.to_vector())


def random_weights(shape: Shape, rng: np.random.Generator) -> Float32s:
    """Weights that know nothing of the two pools; mixed instances, which no agent is trained on, are those of `linear`.

    Those of the units are normal with standard deviation 1 ÷ √inputs, those of the cost a tenth of that; no skip.

    Args:
        shape: the hidden layers.
        rng: draws them.
    """
    arrays = {name: np.zeros(size, np.float32) for name, size in shape.arrays.items()}
    for stage in AGENTS_STAGES:
        inputs = len(arrays[f"{stage}.context"]) + len(arrays[f"{stage}.instance"])
        for part, fan_in, scale in (
            ("context", inputs, 1.0),
            ("instance", inputs, 1.0),
            ("second", shape.hidden[0], 1.0),
            ("out", shape.hidden[-1], 0.1),
        ):
            name = f"{stage}.{part}"
            if name in arrays:
                arrays[name] = (scale / np.sqrt(fan_in) * rng.standard_normal(arrays[name].shape)).astype(np.float32)
    begun = shape.split(shape.initial(rng))
    return shape.join(arrays | {name: begun[name] for name in arrays if name.partition(".")[0] not in AGENTS_STAGES})
