"""The plain twin of each built-in policy, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disaggroute.envs.router_constants import RouterConstants
from disaggroute.policies import make
from disaggroute.policies.network import Network as Scored

from .plain import (
    BestFit,
    Card,
    LeastLoaded,
    LengthThreshold,
    MarginalCost,
    Plain,
    PowerOfTwo,
    ProjectedLatency,
    RandomChoice,
    RoundRobin,
    SizeInterval,
)
from .plain_learned import Linear, Network

BY_NAME: dict[str, Callable[..., Plain]] = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "least-loaded": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "length-threshold": LengthThreshold,
}


def plain_policy(
    name: str, params: dict[str, Any], seed: int, constants: RouterConstants, block_size: int
) -> Plain:
    """The plain twin of a built-in policy."""
    if name == "linear":
        return Linear(seed, constants, block_size, **params)
    if name == "network":
        network = make(name, **params)
        assert isinstance(network, Scored)
        weights = network.shape.split(network.vector_of_weights)
        return Network(seed, constants, block_size, hidden=params["hidden"], weights=weights)
    if name in ("marginal-cost", "simulator-naive"):
        return MarginalCost(seed, constants, **params)
    if name in ("least-ttft", "min-tpot"):
        return ProjectedLatency(seed, constants, named=name, **params)
    if name == "best-fit":
        return BestFit(seed, constants, **params)
    if name == "size-interval":
        return SizeInterval(seed, constants, **params)
    if name == "card":
        return Card(seed, constants, **params)
    return BY_NAME[name](seed, **params)
