"""A scorer as actor and a pooled value as critic, in the form that Stable-Baselines3 and sb3-contrib train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import Tensor, nn

from .scorers import UNAVAILABLE, PooledValue, Scorer

Observation = dict[str, Tensor]


class _Scored(nn.Module):
    """What both policies share.

    The instance of each pool is drawn from softmax(−cost); the likeliest is the one of least cost, which is what the
    trained policy chooses.

    Args:
        make_scorer: makes the scorer.
        value_units: of the hidden layers of the value.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, *args: Any, make_scorer: Callable[[], Scorer], value_units: int = 64, **kwargs: Any) -> None:
        self._make_scorer, self._value_units = make_scorer, value_units
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        self.scorer: Any = self._make_scorer()
        self.value = PooledValue(self._value_units)
        settings: Any = self.optimizer_kwargs
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **settings)  # type: ignore[operator]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data: dict[str, Any] = super()._get_constructor_parameters()  # type: ignore[misc]
        return {**data, "make_scorer": self._make_scorer, "value_units": self._value_units}

    def forward(
        self, obs: Observation, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, 2), values (B, 1) and log probabilities (B,)."""
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.predict_values(obs), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Observation, actions: Tensor, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values (B, 1), log probabilities (B,) of actions (B, 2), and entropies (B,)."""
        distribution = self.get_distribution(obs, action_masks)
        return self.predict_values(obs), distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Observation, action_masks: Any = None) -> Any:
        """The distribution of the actions."""
        costs = self.scorer(obs["request"], obs["prefill"], obs["decode"])
        # Finite, so that an instance which may not be assigned gets probability 0 and no gradient that is no number.
        logits = -torch.cat(costs, dim=1).clamp(max=UNAVAILABLE)
        distribution = self.action_dist.proba_distribution(action_logits=logits)  # type: ignore[operator, union-attr]
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def predict_values(self, obs: Observation) -> Tensor:
        """(B, 1)."""
        values: Tensor = self.value(obs["request"], obs["prefill"], obs["decode"])
        return values


class ScoredPolicy(_Scored, ActorCriticPolicy):  # type: ignore[misc]
    """For `PPO`: the scorer itself leaves out what may not be assigned, which the observation tells."""


class MaskableScoredPolicy(_Scored, MaskableActorCriticPolicy):  # type: ignore[misc]
    """For `MaskablePPO`."""
