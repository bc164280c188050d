"""What a PPO of Stable-Baselines3 learns from: the decisions of whole episodes, with credit where it is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBufferSamples
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples

from . import credit
from .episodes import Episodes


class Credit(NamedTuple):
    """How decisions are credited; see `credit.py`.

    Attributes:
        horizon_s: after which time a reward counts 1/e, s.
        trace_decay: λ of the advantage estimates.
        attributed: share of a miss that is paid where its request was routed.
        group: episodes with the same requests that are compared; 1: none.
    """

    horizon_s: float = 10.0
    trace_decay: float = 0.95
    attributed: float = 1.0
    group: int = 8


class DecisionBuffer(DictRolloutBuffer):
    """Takes the place of Stable-Baselines3's rollout buffer, whose steps all count and whose γ is one number.

    Args:
        credit: how decisions are credited.
    """

    def __init__(self, *args: Any, credit: Credit, **kwargs: Any) -> None:
        self._credit = credit
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Forgets what it holds."""
        self.values = self.returns = self.advantages = np.zeros(0, np.float32)
        self._tensors: dict[str, torch.Tensor] = {}
        self._seen: dict[str, torch.Tensor] = {}
        self._masks: torch.Tensor | None = None

    def fill(self, episodes: Episodes, values: npt.NDArray[np.float32]) -> None:
        """Takes the decisions of episodes.

        Args:
            episodes: whose player kept `log_probs`, `masks` where it uses them, and `lessons` where other actions than
                its own are to be learned.
            values: (n,) of what was seen at each decision.
        """
        told, how = episodes, self._credit
        paid = credit.attributed(told.rewards, told.misses, told.routed_at, how.attributed)
        paid = credit.relative(paid, told.alive, how.group)
        found = credit.advantages(
            paid,
            told.spread(values),
            told.dt,
            told.alive,
            horizon_s=how.horizon_s,
            trace_decay=how.trace_decay,
        )
        self.values = values
        self.advantages = found[told.alive].astype(np.float32)
        self.returns = self.values + self.advantages
        parts = {
            "actions": told.kept.get("lessons", told.actions).astype(np.float32),
            "old_values": self.values,
            "old_log_prob": told.kept["log_probs"],
            "advantages": self.advantages,
            "returns": self.returns,
        }
        self._tensors = {name: self.to_torch(array) for name, array in parts.items()}
        self._seen = {name: self.to_torch(array) for name, array in told.observations.items()}
        masks = told.kept.get("masks")
        self._masks = None if masks is None else self.to_torch(masks)

    def get(self, batch_size: int | None = None) -> Iterator[Any]:  # type: ignore[override]
        """All decisions in random order, in batches of about this size."""
        count = len(self.values)
        order = torch.randperm(count, device="cpu").to(self.device)
        for rows in order.tensor_split(max(round(count / (batch_size or count)), 1)):
            parts: dict[str, Any] = {name: tensor[rows] for name, tensor in self._tensors.items()}
            parts["observations"] = {name: tensor[rows] for name, tensor in self._seen.items()}
            if self._masks is None:
                yield DictRolloutBufferSamples(**parts)
            else:
                yield MaskableDictRolloutBufferSamples(**parts, action_masks=self._masks[rows])
