"""Scorers: the torch modules that are trained, and the policies that they become.

A scorer gives each instance a cost, from the request and that instance's features, with one set of weights for all
instances of a pool; the instance of least cost is chosen. A learner draws from softmax(−cost) instead.
"""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...envs import features as F
from ...policies import registry
from ...policies.linear import Linear
from ...policies.policy import Policy
from .config import PolicyConfig

POOLS = {"prefill": F.PREFILL, "decode": F.DECODE}
"""Features of an instance, by pool."""

STATE = {
    pool: [k for k, feature in enumerate(columns) if feature not in F.PROFILE and feature.name != "poll_age"]
    for pool, columns in POOLS.items()
}
"""Columns of what the ledger and the poll say; the age of the poll is the same for all instances."""

UNAVAILABLE = 1e9
"""Cost of an instance that may not be assigned."""


class Scorer(Protocol):
    """What is trained: a `torch.nn.Module` with two methods."""

    def __call__(self, request: Tensor, prefill: Tensor, decode: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P) and (B, D) costs, for request (B, 6), prefill (B, P, 22) and decode (B, D, 26)."""

    def policy(self) -> Policy:
        """The policy that chooses the least cost."""


def is_available(instances: Tensor) -> Tensor:
    """(B, I) bool: which instances may be assigned; rows of padding may not."""
    return instances[..., -1] > 0.5


class LinearScorer(nn.Module):
    """The costs of the policy `linear`.

    Each state column, the index, and their products with the request's features have a weight.

    Args:
        start: weights to begin with; None: small random ones.
        seed: draws them.
    """

    def __init__(self, start: Linear | None = None, seed: int = 0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self._columns = {
            pool: [*STATE[pool], [feature.name for feature in columns].index("index")]
            for pool, columns in POOLS.items()
        }
        rows = 1 + len(F.REQUEST)
        for pool, columns in self._columns.items():
            weights = 0.01 * rng.standard_normal((rows, len(columns)))
            if start is not None:
                weights = self._weights_of(start, pool)
            self.register_parameter(pool, nn.Parameter(torch.tensor(weights, dtype=torch.float32)))

    def forward(self, request: Tensor, prefill: Tensor, decode: Tensor) -> tuple[Tensor, Tensor]:
        """As `Scorer` says."""
        with_one = torch.cat([torch.ones_like(request[:, :1]), request], dim=1)
        costs = []
        for pool, instances in (("prefill", prefill), ("decode", decode)):
            weights = with_one @ self.get_parameter(pool)
            cost = torch.einsum("bik,bk->bi", instances[..., self._columns[pool]], weights)
            costs.append(torch.where(is_available(instances), cost, UNAVAILABLE))
        return costs[0], costs[1]

    def policy(self) -> Policy:
        """The policy `linear` with these weights."""
        terms: dict[str, dict[str, float]] = {}
        for pool, columns in self._columns.items():
            weights = self.get_parameter(pool).detach().cpu().double().numpy()
            terms[pool] = {
                self._term(pool, row, column): float(weights[row, k])
                for row in range(len(weights))
                for k, column in enumerate(columns)
            }
        return registry.make("linear", **terms)

    def _term(self, pool: str, row: int, column: int) -> str:
        name = POOLS[pool][column].name
        return name if row == 0 else f"{F.REQUEST[row - 1].name}*{name}"

    def _weights_of(self, start: Linear, pool: str) -> np.ndarray:
        given = dict(getattr(start.parameters, pool))
        rows, columns = range(1 + len(F.REQUEST)), self._columns[pool]
        found = np.array([[given.pop(self._term(pool, row, column), 0.0) for column in columns] for row in rows])
        if any(given.values()):
            raise ValueError(
                f"start weighs {next(name for name, weight in given.items() if weight)} of {pool} instances, which is "
                "not trained; begin with other weights"
            )
        return found


def scorer(policy: PolicyConfig, seed: int) -> Scorer:
    """A scorer to train.

    Args:
        policy: which policy it becomes, and what it begins with; without that, random weights.
        seed: draws them.

    Raises:
        ValueError: it cannot begin with that policy.
    """
    start = None if policy.start is None else registry.parse(policy.start)
    if policy.name == "network":
        from .network_scorer import NetworkScorer

        return NetworkScorer(policy.hidden, start, seed)
    if start is not None and not isinstance(start, Linear):
        raise ValueError(f"policy.start is {policy.start!r}; a linear policy begins with a linear one")
    return LinearScorer(start, seed)


class PooledValue(nn.Module):
    """The value of a state: a small network on the request and on the mean, least and greatest of each state column.

    Args:
        units: of its two hidden layers.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        inputs = len(F.REQUEST) + sum(3 * len(columns) for columns in STATE.values())
        last = nn.Linear(units, 1)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.layers = nn.Sequential(nn.Linear(inputs, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), last)

    def forward(self, request: Tensor, prefill: Tensor, decode: Tensor) -> Tensor:
        """(B, 1) values."""
        pools = [pooled(prefill, STATE["prefill"]), pooled(decode, STATE["decode"])]
        return cast(Tensor, self.layers(torch.cat([request.clamp(-10.0, 10.0), *pools], dim=1)))


def pooled(instances: Tensor, columns: list[int]) -> Tensor:
    """(B, 3·len(columns)) mean, least and greatest of columns over the instances that may be assigned, within ±10."""
    available = is_available(instances)[..., None]
    values = instances[..., columns].clamp(-10.0, 10.0)
    mean = (values * available).sum(dim=1) / available.sum(dim=1).clamp(min=1)
    least = torch.where(available, values, 10.0).amin(dim=1)
    greatest = torch.where(available, values, -10.0).amax(dim=1)
    return torch.cat([mean, least, greatest], dim=1)
