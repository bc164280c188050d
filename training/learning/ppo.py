"""Proximal policy optimisation with Stable-Baselines3, from random weights or from given ones.

    disaggroute train ppo
    disaggroute train ppo --set method=maskable-ppo

An update plays one episode in every environment, credits each decision (`credit.py`) and improves the scorer by PPO's
clipped objective; learning rate and entropy bonus fall over the budget. Everything random in update k is
drawn from (training seed, k), and traces are numbered by updates: so a run goes on from any checkpoint to the same
weights. What was measured: docs/learning.md.

Source: Schulman et al., "Proximal policy optimization algorithms", arXiv 1707.06347; Huang and Ontañón, "A closer look
at invalid action masking in policy gradient algorithms", arXiv 2006.14171, for maskable-ppo.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor

from ..sb3_vec_env import Sb3VecEnv
from .actor_critic import MaskableScoredPolicy, ScoredPolicy
from .config import TrainingConfig
from .decision_buffer import Credit, DecisionBuffer
from .episodes import Act, Observations, environments
from .run import Candidate, TrainingRun
from .scorers import scorer
from .torch_training import EpisodeParameters, PlaysEpisodes, check_learner, learn, seed_update

UNIT = "decisions"

VALUED = 16_384
"""Decisions that are valued at a time."""


class PpoParameters(EpisodeParameters):
    """Hyper-parameters of PPO, beside those of all methods.

    Attributes:
        trace_decay: λ of the advantage estimates.
        epochs: passes over the decisions of an update.
        entropy: weight of the entropy bonus, at the beginning; it falls to 0.
        clip: of the probability ratio.
        value_weight: of the value's error.
    """

    trace_decay: float = Field(0.95, ge=0, le=1)
    epochs: int = Field(4, ge=1)
    entropy: float = Field(5e-3, ge=0)
    clip: float = Field(0.2, gt=0)
    value_weight: float = Field(0.5, ge=0)

    @property
    def credit(self) -> Credit:
        """How decisions are credited."""
        return Credit(self.horizon_s, self.trace_decay, self.attributed, self.group)


class Config(TrainingConfig):
    """A training by PPO; the budget counts decisions.

    Attributes:
        parameters: hyper-parameters.
    """

    method: Literal["ppo", "maskable-ppo"]
    checkpoint_every: int = Field(500_000, ge=1)
    parameters: PpoParameters = PpoParameters()

    def check(self) -> None:
        """Looks up all names, and refuses mixed instances."""
        super().check()
        check_learner(self)


class _EpisodicPPO(PlaysEpisodes):
    """PPO whose rollouts are whole episodes; for both kinds."""

    @property
    def scorer(self: Any) -> Any:
        """What is trained."""
        return self.policy.scorer

    def collect_rollouts(
        self: Any,
        env: Any,
        callback: BaseCallback,
        rollout_buffer: Any,
        n_rollout_steps: int = 0,
        use_masking: bool = True,
    ) -> bool:
        """Plays one episode in every environment, however long they are."""
        callback.on_rollout_start()
        self.begin_update()
        self.ent_coef = self.config.parameters.entropy * self._current_progress_remaining
        rollout_buffer.reset()
        episodes = self.play_update(self._player)
        rollout_buffer.fill(episodes, self._values(episodes.observations))
        callback.update_locals(locals())
        going: bool = callback.on_step()
        callback.on_rollout_end()
        return going

    def _player(self: Any, env: Sb3VecEnv, seeds: list[int]) -> Act:
        """Who plays episodes with these seeds."""
        return partial(self._act, env)

    def _act(self: Any, env: Sb3VecEnv, shown: Observations, alive: Any) -> tuple[Any, dict[str, Any]]:
        masks = np.stack(env.env_method("action_masks")) if isinstance(self, MaskablePPO) else None
        with torch.no_grad():
            distribution = self.policy.get_distribution(obs_as_tensor(dict(shown), self.device), masks)
            actions = distribution.get_actions()
            kept = {"log_probs": distribution.log_prob(actions).cpu().numpy()}
        return actions.cpu().numpy(), kept if masks is None else kept | {"masks": masks}

    def _values(self: Any, observations: Observations) -> Any:
        """(n,) of all decisions at once, which is quicker than while they are made."""
        count = len(observations["request"])
        parts = []
        for first in range(0, count, VALUED):
            rows = {name: array[first : first + VALUED] for name, array in observations.items()}
            with torch.no_grad():
                parts.append(self.policy.predict_values(obs_as_tensor(rows, self.device)).flatten().cpu().numpy())
        return np.concatenate(parts)


class EpisodePPO(_EpisodicPPO, PPO):
    """PPO of Stable-Baselines3 that learns from whole episodes."""


class EpisodeMaskablePPO(_EpisodicPPO, MaskablePPO):
    """MaskablePPO of sb3-contrib likewise."""


Learner = EpisodePPO | EpisodeMaskablePPO


def make(kind: type[Learner], config: Any, training_seed: int, device: str = "cpu") -> Learner:
    """The algorithm, ready to `learn`.

    Args:
        kind: of algorithm.
        config: its configuration.
        training_seed: of everything random.
        device: where torch computes.
    """
    chosen: PpoParameters = config.parameters
    envs = environments(config.scenarios, chosen.environments)
    seed_update(training_seed, 0)
    policy: Any = MaskableScoredPolicy if issubclass(kind, MaskablePPO) else ScoredPolicy
    found = kind(
        policy,
        envs[0],
        learning_rate=chosen.rate,
        n_steps=chosen.batch,  # of a buffer that takes as many as come
        batch_size=chosen.batch,
        n_epochs=chosen.epochs,
        clip_range=chosen.clip,
        ent_coef=chosen.entropy,
        vf_coef=chosen.value_weight,
        max_grad_norm=chosen.gradient_norm,
        rollout_buffer_class=DecisionBuffer,
        rollout_buffer_kwargs={"credit": chosen.credit},
        policy_kwargs={"make_scorer": partial(scorer, config.policy, training_seed), "value_units": chosen.value_units},
        seed=training_seed,
        device=device,
    )
    found.learns_from(envs, config, training_seed)
    return found


def train(config: Config, run: TrainingRun) -> list[Candidate]:
    """PPO or MaskablePPO, as `method` says; see `torch_training.learn`."""
    kind = EpisodeMaskablePPO if config.method == "maskable-ppo" else EpisodePPO
    return learn(config, run, partial(make, kind))
