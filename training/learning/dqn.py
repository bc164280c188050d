"""Deep Q-learning with Stable-Baselines3: a baseline.

    disaggroute train dqn

The value of a pair is the state's value minus the costs of its two instances, so that the pair of greatest value is the
one of least cost in each pool and the scorer alone is the policy. An update plays one episode in every environment,
ε-greedily, credits each decision as `ppo.py` does (`credit.py`), and fits the values to one-step targets, discounted
by simulated time. Only the last update's decisions are learned from, so a checkpoint is small and a run goes on to the
same weights.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015; Wang et al., "Dueling
network architectures for deep reinforcement learning", arXiv 1511.06581, for the state's value.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from stable_baselines3 import DQN
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, RolloutReturn
from stable_baselines3.common.utils import obs_as_tensor, polyak_update
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor

from ..sb3_vec_env import Sb3VecEnv
from . import credit
from .config import TrainingConfig
from .episodes import Episodes, Observations, environments
from .run import Candidate, TrainingRun
from .scorers import UNAVAILABLE, PooledValue, scorer
from .torch_training import EpisodeParameters, PlaysEpisodes, check_learner, learn, seed_update

UNIT = "decisions"


class DqnParameters(EpisodeParameters):
    """Hyper-parameters of DQN, beside those of all methods.

    Attributes:
        steps: gradient steps of an update.
        target_every: of them between copies of the values to the target.
        exploration: share of random pairs at the beginning.
        least_exploration: at the end of `exploration_share`, and from then on.
        exploration_share: share of the budget in which exploration falls.
    """

    steps: int = Field(120, ge=1)
    target_every: int = Field(10, ge=1)
    exploration: float = Field(1.0, ge=0, le=1)
    least_exploration: float = Field(0.1, ge=0, le=1)
    exploration_share: float = Field(0.5, gt=0, le=1)


class Config(TrainingConfig):
    """A training by DQN; the budget counts decisions.

    Attributes:
        parameters: hyper-parameters.
    """

    method: Literal["dqn"]
    checkpoint_every: int = Field(500_000, ge=1)
    parameters: DqnParameters = DqnParameters()

    def check(self) -> None:
        """Looks up all names, and refuses mixed instances."""
        super().check()
        check_learner(self)


class PairValues(QNetwork):
    """Q(s, (p, d)) = V(s) − cost(p) − cost(d)."""

    def __init__(self, make_scorer: Any, value_units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs, net_arch=[])
        del self.q_net
        self.scorer, self.value = make_scorer(), PooledValue(value_units)

    def forward(self, obs: Any) -> Tensor:
        """(B, P·D), pairs numbered as `DiscreteActions` does."""
        seen = obs["request"], obs["prefill"], obs["decode"]
        prefill, decode = self.scorer(*seen)
        costs = prefill[:, :, None] + decode[:, None, :]
        values: Tensor = self.value(*seen) - costs.flatten(1).clamp(max=UNAVAILABLE)
        return values


class PairPolicy(DQNPolicy):
    """The policy of `DQN` with these values."""

    def __init__(self, *args: Any, make_scorer: Any, value_units: int, **kwargs: Any) -> None:
        self._make_scorer, self._value_units = make_scorer, value_units
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> QNetwork:
        """The values, or the target."""
        args = self._update_features_extractor(self.net_args, features_extractor=None)
        kept = {name: args[name] for name in args if name not in ("net_arch", "activation_fn")}
        return PairValues(self._make_scorer, self._value_units, **kept).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return {**data, "make_scorer": self._make_scorer, "value_units": self._value_units}


class LastEpisodes:
    """The decisions of the last update, in the place of a replay buffer."""

    n_steps = 1

    def __init__(self, buffer_size: int, observation_space: Any, action_space: Any, device: Any, **_: Any) -> None:
        self._device = device

    def fill(self, episodes: Episodes, how: DqnParameters) -> None:
        """Takes the place of what it held."""
        paid = credit.attributed(episodes.rewards, episodes.misses, episodes.routed_at, how.attributed)
        paid = credit.relative(paid, episodes.alive, how.group)
        self._observations = {name: torch.from_numpy(rows) for name, rows in episodes.observations.items()}
        self._actions = torch.from_numpy(episodes.actions).reshape(-1, 1)
        self._rewards = torch.from_numpy(paid[episodes.alive].astype(np.float32))[:, None]
        gamma = np.exp(-episodes.dt[episodes.alive] / how.horizon_s)
        self._discounts = torch.from_numpy(gamma.astype(np.float32))[:, None]
        self._next = torch.from_numpy(following(episodes.alive))

    def sample(self, batch_size: int, env: Any = None) -> DictReplayBufferSamples:
        """Decisions drawn with replacement."""
        rows = torch.randint(len(self._next), (batch_size,))
        after = self._next[rows]
        found = DictReplayBufferSamples(
            observations={name: of[rows].to(self._device) for name, of in self._observations.items()},
            actions=self._actions[rows].to(self._device),
            next_observations={name: of[after].to(self._device) for name, of in self._observations.items()},
            dones=(after < 0).float()[:, None].to(self._device),
            rewards=self._rewards[rows].to(self._device),
            discounts=self._discounts[rows].to(self._device),
        )
        return found


def following(alive: Any) -> Any:
    """(n,) number of the decision that follows each one in its episode; −1 after the last.

    Args:
        alive: (T, E) as in `Episodes`.
    """
    numbers = np.full(alive.shape, -1, np.int64)
    numbers[alive] = np.arange(alive.sum())
    return np.vstack([numbers[1:], np.full((1, alive.shape[1]), -1)])[alive]


class EpisodeDQN(PlaysEpisodes, DQN):
    """DQN of Stable-Baselines3 that learns from whole episodes."""

    @property
    def scorer(self) -> Any:
        """What is trained."""
        return self.q_net.scorer

    def collect_rollouts(self, env: Any, callback: Any, *_: Any, **__: Any) -> RolloutReturn:
        """Plays one episode in every environment."""
        callback.on_rollout_start()
        self.begin_update()
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        episodes = self.play_update(lambda envs, _: partial(self._act, envs))
        self.replay_buffer.fill(episodes, self.config.parameters)  # type: ignore[union-attr]
        callback.update_locals(locals())
        going = callback.on_step()
        callback.on_rollout_end()
        return RolloutReturn(episodes.decisions, episodes.alive.shape[1], going)

    def _act(self, env: Sb3VecEnv, shown: Observations, alive: Any) -> tuple[Any, dict[str, Any]]:
        with torch.no_grad():
            best = self.q_net(obs_as_tensor(dict(shown), self.device)).argmax(dim=1).cpu()
        masks = torch.from_numpy(np.stack(env.env_method("action_masks")))
        drawn = torch.multinomial(masks.float(), 1)[:, 0]
        chosen = torch.where(torch.rand(len(best)) < self.exploration_rate, drawn, best)
        return chosen.numpy(), {}

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Gradient steps, with a copy to the target before each `target_every` of them."""
        every = self.config.parameters.target_every
        for done in range(0, gradient_steps, every):
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), 1.0)
            super().train(min(every, gradient_steps - done), batch_size)


def make(config: Config, training_seed: int, device: str = "cpu") -> EpisodeDQN:
    """The algorithm, ready to `learn`."""
    how = config.parameters
    envs = environments(config.scenarios, [how.episodes(scenario) for scenario in config.scenarios], discrete=True)
    seed_update(training_seed, 0)
    found = EpisodeDQN(
        PairPolicy,
        envs[0],
        learning_rate=how.rate,
        learning_starts=0,
        batch_size=how.batch,
        gradient_steps=how.steps,
        exploration_fraction=how.exploration_share,
        exploration_initial_eps=how.exploration,
        exploration_final_eps=how.least_exploration,
        max_grad_norm=how.gradient_norm,
        replay_buffer_class=LastEpisodes,  # type: ignore[arg-type]
        policy_kwargs={"make_scorer": partial(scorer, config.policy, training_seed), "value_units": how.value_units},
        seed=training_seed,
        device=device,
    )
    found.learns_from(envs, config, training_seed)
    return found


def train(config: Config, run: TrainingRun) -> list[Candidate]:
    """DQN; see `torch_training.learn`."""
    return learn(config, run, make)
