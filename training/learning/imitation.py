"""Imitation of a known policy, and PPO from there.

    disaggroute train imitation

In the first updates the scorer learns to decide as the teacher does: the teacher plays the first one, the scorer itself
the others, and in each the teacher says what it would have done (DAgger), so that the scorer learns what to do where it
gets to by itself. The value learns along. Then PPO goes on, as in `ppo.py`.

Source: Ross, Gordon and Bagnell, "A reduction of imitation learning and structured prediction to no-regret online
learning", AISTATS 2011, arXiv 1011.0686.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from ...envs.admission import Router
from ...policies import registry
from ..evaluation import check_policies
from ..sb3_vec_env import Sb3VecEnv
from .config import TrainingConfig
from .episodes import Act, Observations
from .ppo import EpisodePPO, PpoParameters, make
from .run import Candidate, TrainingRun
from .torch_training import check_learner, learn

UNIT = "decisions"


class ImitationParameters(PpoParameters):
    """Hyper-parameters of imitation and of the PPO that follows.

    Attributes:
        teacher: text of the policy that is imitated.
        lessons: updates in which it is.
        lesson_rate: learning rate of them.
        lesson_epochs: passes over the decisions of each.
    """

    teacher: str
    lessons: int = Field(4, ge=1)
    lesson_rate: float = Field(3e-3, gt=0)
    lesson_epochs: int = Field(6, ge=1)


class Config(TrainingConfig):
    """A training by imitation and PPO; the budget counts decisions of both.

    Attributes:
        parameters: hyper-parameters.
    """

    method: Literal["imitation"]
    checkpoint_every: int = Field(500_000, ge=1)
    parameters: ImitationParameters

    def check(self) -> None:
        """Looks up all names, the teacher's too, and refuses mixed instances."""
        super().check()
        check_policies([self.parameters.teacher])
        check_learner(self)


class Teacher:
    """Says what a policy would do, in each environment by a policy object of its own.

    Args:
        text: of the policy.
        env: the environments.
        seeds: of their traces, for what is random in the policy.
    """

    def __init__(self, text: str, env: Sb3VecEnv, seeds: list[int]) -> None:
        self._env = env
        self._policies: list[Router] = [registry.parse(text) for _ in seeds]
        for policy, seed in zip(self._policies, seeds, strict=True):
            policy.reset(seed)

    def actions(self, alive: Any) -> Any:
        """(E, 2) what it would do for the requests that await a decision; anything where an episode has ended."""
        found = np.zeros((len(self._policies), 2), np.int64)
        for i in np.flatnonzero(alive):
            found[i] = self._env.at_admission(int(i), self._policies[i].route)
        return found


class ImitatingPPO(EpisodePPO):
    """PPO whose first updates are lessons."""

    def _player(self: Any, env: Sb3VecEnv, seeds: list[int]) -> Act:
        if self.updates >= self.config.parameters.lessons:
            return super()._player(env, seeds)
        teacher, first = Teacher(self.config.parameters.teacher, env, seeds), self.updates == 0

        def act(shown: Observations, alive: Any) -> tuple[Any, dict[str, Any]]:
            actions, kept = self._act(env, shown, alive)
            told = teacher.actions(alive)
            if first:
                actions = np.where(alive[:, None], told, actions)
            return actions, kept | {"lessons": told}

        return act

    def train(self: Any) -> None:
        """A lesson, or an update of PPO."""
        how = self.config.parameters
        if self.updates > how.lessons:
            super().train()
            return
        self.policy.set_training_mode(True)
        for group in self.policy.optimizer.param_groups:
            group["lr"] = how.lesson_rate
        for _ in range(how.lesson_epochs):
            for batch in self.rollout_buffer.get(self.batch_size):
                values, log_probs, _ = self.policy.evaluate_actions(batch.observations, batch.actions)
                loss = -log_probs.mean() + self.vf_coef * mse_loss(values.flatten(), batch.returns)
                self.policy.optimizer.zero_grad()
                loss.backward()
                clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()
        self.logger.record("train/loss", loss.item())


def train(config: Config, run: TrainingRun) -> list[Candidate]:
    """Imitation, then PPO; see `torch_training.learn`."""
    return learn(config, run, partial(make, ImitatingPPO))
