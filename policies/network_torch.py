"""The network in torch: the same costs as `policies/network.py`, in batches and with gradients.

Nothing in the package imports this module but what trains: decisions need no torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..envs import features as F
from .network_shape import (
    CLIP,
    COLUMNS,
    INPUTS,
    LEAK,
    LOG_SCALE,
    STAGES,
    SUMMARY,
    Float32s,
    Shape,
    columns_at,
)

_AVAILABLE = {stage: columns_at(stage, ("available",))[0] for stage in STAGES}


class Scorer(nn.Module):
    """Costs of the instances of batches of observations, as the environment gives them.

    Sums are made in torch's own order, so that costs agree with those of `network` to float32's precision, not bit by
    bit. The weights are parameters named as in `Shape.arrays`, with `_` in the place of the point.

    Args:
        shape: the hidden layers.
        vector: (shape.size,) weights; None: those of `Shape.initial` with seed 0.
    """

    def __init__(self, shape: Shape, vector: npt.NDArray[np.floating] | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.weights = nn.ParameterDict({_key(name): torch.zeros(size) for name, size in shape.arrays.items()})
        for stage in STAGES:
            inputs, summary = columns_at(stage, INPUTS[stage]), columns_at(stage, SUMMARY[stage])
            self.register_buffer(f"{stage}_inputs", torch.tensor(inputs), persistent=False)
            self.register_buffer(f"{stage}_summary", torch.tensor(summary), persistent=False)
        self.load_vector(shape.initial(np.random.default_rng(0)) if vector is None else vector)

    def load_vector(self, vector: npt.NDArray[np.floating]) -> None:
        """Takes over the weights of a vector, in the order of `Shape.arrays`.

        Raises:
            ValueError: another number of weights.
        """
        with torch.no_grad():
            for name, array in self.shape.split(vector).items():
                self.weights[_key(name)].copy_(torch.from_numpy(array.astype(np.float32)))

    def to_vector(self) -> Float32s:
        """(shape.size,) the weights, for `Network.from_vector`."""
        return self.shape.join({name: self.weights[_key(name)].detach().cpu().numpy() for name in self.shape.arrays})

    def forward(
        self, request: torch.Tensor, prefill: torch.Tensor, decode: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Costs of both pools; the agent's logits are their negatives.

        Args:
            request: (B, features of a request).
            prefill: (B, P, features of a prefill instance).
            decode: (B, D, features of a decode instance).

        Returns:
            (B, P) and (B, D); +inf where `available` is 0, as of padded rows.
        """
        return self.costs("prefill", request, prefill), self.costs("decode", request, decode)

    def costs(self, stage: str, request: torch.Tensor, instances: torch.Tensor) -> torch.Tensor:
        """Costs of one pool, such as that of the mixed instances.

        Args:
            stage: prefill, decode or mixed.
            request: (B, features of a request).
            instances: (B, N, features of an instance of that stage).

        Returns:
            (B, N); +inf where `available` is 0.

        Raises:
            ValueError: an unknown stage, or another number of features.
        """
        if stage not in STAGES:
            raise ValueError(f"stage is {stage!r}; it must be one of {', '.join(STAGES)}")
        for name, given, wanted in (
            ("request", request, len(F.REQUEST)),
            (stage, instances, len(COLUMNS[stage])),
        ):
            if given.shape[-1] != wanted:
                raise ValueError(f"{name} has {given.shape[-1]} features; the features have {wanted}")
        available = instances[..., _AVAILABLE[stage]] != 0
        # What stands in rows that count for nothing must not reach the others, nor the gradients.
        instances = torch.where(available[..., None], instances, 0.0)
        weights = {name: self.weights[_key(f"{stage}.{name}")] for name in self._arrays(stage)}
        slopes = weights["skip"][0] + request @ weights["skip"][1:]
        costs = (instances * slopes[:, None, :]).sum(-1) + self._units(stage, weights, request, instances, available)
        return torch.where(available, costs, torch.inf)

    def _units(
        self,
        stage: str,
        weights: dict[str, torch.Tensor],
        request: torch.Tensor,
        instances: torch.Tensor,
        available: torch.Tensor,
    ) -> torch.Tensor:
        """(B, N) what the hidden units add."""
        clipped = instances.clamp(-CLIP, CLIP)
        shared = self._shared(clipped[..., getattr(self, f"{stage}_summary")], available)
        context = torch.cat([request.clamp(-CLIP, CLIP), shared], -1) @ weights["context"] + weights["bias"]
        units = context[:, None, :] + clipped[..., getattr(self, f"{stage}_inputs")] @ weights["instance"]
        units = nn.functional.leaky_relu(units, LEAK)
        if "second" in weights:
            units = nn.functional.leaky_relu(units @ weights["second"] + weights["second_bias"], LEAK)
        return units @ weights["out"]

    @staticmethod
    def _shared(columns: torch.Tensor, available: torch.Tensor) -> torch.Tensor:
        """(B, 1 + 3·C) size and summary of a pool from (B, N, C) columns; 0 where nothing is available."""
        open_, count = available[..., None], available.sum(-1, keepdim=True)
        some = count > 0
        size = torch.log2(count.clamp(min=1)) / LOG_SCALE
        mean = torch.where(open_, columns, 0.0).sum(1) / count.clamp(min=1)
        least = torch.where(open_, columns, torch.inf).amin(1)
        greatest = torch.where(open_, columns, -torch.inf).amax(1)
        summary = torch.cat([mean, least, greatest], -1)
        return torch.cat([size, torch.where(some, summary, 0.0)], -1)

    def _arrays(self, stage: str) -> list[str]:
        start = f"{stage}."
        return [name.removeprefix(start) for name in self.shape.arrays if name.startswith(start)]


def _key(name: str) -> str:
    return name.replace(".", "_")
