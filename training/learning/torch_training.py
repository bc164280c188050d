"""What trainings with Stable-Baselines3 share: episodes, reproducible random numbers, checkpoints, learning curve."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator
from stable_baselines3.common.callbacks import BaseCallback

from ...envs.setting import Setting
from ..sb3_vec_env import Sb3VecEnv
from .config import STRICT, TrainingConfig, TrainingScenario
from .episodes import Act, Episodes, check_pairs, play, traces, whose_turn
from .run import Candidate, TrainingRun
from .scorers import Scorer, scorer

LEAST_RATE = 0.05
"""Share of the learning rate that is left at the end."""

SCALARS = ("approx_kl", "clip_fraction", "entropy_loss", "explained_variance", "loss", "value_loss")
"""What is told of an update, where the algorithm records it."""


class EpisodeParameters(BaseModel):
    """Hyper-parameters of all methods here.

    Attributes:
        environments: episodes of an update.
        most_decisions: about so many decisions an update has at most: a scenario with more of them has fewer
            episodes, but at least one group; None: as many as come.
        group: of them that meet the same requests and are compared; 1: none are.
        horizon_s: after which time a reward counts 1/e, s.
        attributed: share of a miss that is paid to the decision that routed its request; the rest is paid when it is
            certain.
        batch: decisions per gradient step.
        learning_rate: of Adam, at the beginning; it falls to `LEAST_RATE` of that.
        value_units: of the hidden layers of a state's value.
        gradient_norm: longest gradient.
    """

    model_config = STRICT

    environments: int = Field(64, ge=1, le=4096)
    most_decisions: int | None = Field(None, ge=1)
    group: int = Field(8, ge=1)
    horizon_s: float = Field(10.0, gt=0)
    attributed: float = Field(1.0, ge=0, le=1)
    batch: int = Field(4096, ge=2)
    learning_rate: float = Field(4e-3, gt=0)
    value_units: int = Field(64, ge=1, le=1024)
    gradient_norm: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _whole_groups(self) -> EpisodeParameters:
        if self.environments % self.group:
            raise ValueError(f"environments is {self.environments}; it must be a multiple of group, {self.group}")
        return self

    def episodes(self, scenario: TrainingScenario) -> int:
        """Episodes of an update on this scenario."""
        if self.most_decisions is None:
            return self.environments
        setting = Setting.of(scenario.plain)
        groups = int(self.most_decisions / (float(scenario.plain.rate or 0) * setting.duration_s * self.group))
        return min(max(groups, 1) * self.group, self.environments)

    def rate(self, remaining: float) -> float:
        """The learning rate when this share of the budget remains."""
        return self.learning_rate * max(remaining, LEAST_RATE)


class PlaysEpisodes:
    """What makes an algorithm of Stable-Baselines3 learn from whole episodes; a class to inherit from beside it.

    Attributes:
        updates: done so far.
        played: goodput of the last update's episodes.
        curve: its name in the learning curve.
    """

    updates: int
    played: float
    curve: str

    def learns_from(self, envs: Sequence[Sb3VecEnv], config: Any, training_seed: int) -> None:
        """Says what it plays; to be called before `learn`."""
        self.envs, self.config, self.training_seed = envs, config, training_seed
        self.updates, self.played, self.curve = 0, 0.0, "goodput"

    def begin_update(self: Any) -> None:
        """Seeds all that is random in this update, and says how much of the budget remains."""
        seed_update(self.training_seed, self.updates)
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        self.policy.set_training_mode(False)

    def play_update(self: Any, player: Callable[[Sb3VecEnv, list[int]], Act]) -> Episodes:
        """One episode in every environment of a scenario; scenarios take turns.

        Args:
            player: makes who decides in these environments, on traces of these seeds.
        """
        how: EpisodeParameters = self.config.parameters
        scenarios = self.config.scenarios
        turn = whose_turn([scenario.weight for scenario in scenarios], self.updates)
        env = self.envs[turn]
        drawn = traces(self.config.seeds, self.training_seed, self.updates, env.num_envs // how.group)
        seeds = [seed for seed in drawn for _ in range(how.group)]
        episodes = play(env, seeds, player(env, seeds))
        self.num_timesteps += episodes.decisions
        self.updates += 1
        self.played = episodes.goodput
        self.curve = "goodput" if len(scenarios) == 1 else f"goodput/{scenarios[turn].label}"
        return episodes


def check_learner(config: TrainingConfig) -> None:
    """Refuses what these agents cannot learn.

    Raises:
        ValueError: a scenario with mixed instances, or a scorer that cannot begin with `policy.start`.
    """
    check_pairs(config.scenarios)
    scorer(config.policy, config.training_seed)


def learn(config: Any, run: TrainingRun, make: Callable[[Any, int, str], Any]) -> list[Candidate]:
    """Trains from the run's last checkpoint to the end of the budget.

    Args:
        config: of the method.
        run: of the training.
        make: makes the algorithm, of the configuration, the training seed and the device.

    Returns:
        The policy at each checkpoint of the second half of the budget, and at its end.
    """
    with reproducible():
        learner = make(config, run.seed, run.device)
        training = TorchTraining(run, learner, config.checkpoint_every)
        left = config.budget - learner.num_timesteps
        if left > 0:
            try:
                learner.learn(left, callback=training, reset_num_timesteps=False)
            except ValueError:  # Of torch, in the middle of an update, which says less.
                training.check_finite()
                raise
        for env in learner.envs:
            env.close()
        return training.candidates()


@contextmanager
def reproducible() -> Iterator[None]:
    """One thread, since sums depend on how they are split; and algorithms that give the same bits each time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it CUDA's products are refused below
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def seed_update(training_seed: int, update: int) -> None:
    """Seeds what is random in an update, whatever came before."""
    words = np.random.SeedSequence([training_seed, update]).generate_state(2)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))  # which Stable-Baselines3 draws from


class TorchTraining(BaseCallback):
    """Stores checkpoints and the learning curve of an algorithm that counts its `updates`.

    Args:
        run: where they go; its last checkpoint is loaded.
        learner: the algorithm, whose weights are all in its policy.
        every: decisions between checkpoints.

    Raises:
        ValueError: the checkpoint is of another network; later, weights are no numbers any more.
    """

    def __init__(self, run: TrainingRun, learner: Any, every: int) -> None:
        super().__init__()
        self._run, self._learner, self._every = run, learner, every
        self._kept: list[tuple[int, dict[str, torch.Tensor]]] = []
        self._noted = 0
        latest = run.latest()
        if latest is not None:
            self._load(latest[1])

    def _load(self, content: bytes) -> None:
        state = torch.load(io.BytesIO(content), map_location=self._learner.device, weights_only=True)
        try:
            self._learner.policy.load_state_dict(state["policy"])
            self._learner.policy.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ValueError(
                f"the last checkpoint is of another network; train anew in another folder ({error})"
            ) from None
        self._learner.updates, self._learner.num_timesteps = state["updates"], state["decisions"]
        self._kept, self._noted = state["kept"], state["updates"]

    def _on_rollout_start(self) -> None:
        self.check_finite()
        self._note()
        if self._learner.num_timesteps // self._every > self._stored() // self._every:
            self._store()

    def _on_training_end(self) -> None:
        self.check_finite()
        self._note()
        self._store()

    def _on_step(self) -> bool:
        return True

    def check_finite(self) -> None:
        """Refuses weights of which nothing more can be learned, before they are stored.

        Raises:
            ValueError: one is infinite or no number.
        """
        if not all(bool(torch.isfinite(weights).all()) for weights in self._learner.policy.parameters()):
            raise ValueError(
                f"after {self._learner.num_timesteps:,} decisions the weights are no numbers any more; a lower "
                "learning rate may help"
            )

    def _stored(self) -> int:
        latest = self._run.latest()
        return latest[0] if latest else 0

    def _note(self) -> None:
        """The row of the last update."""
        learner = self._learner
        if learner.updates == self._noted:
            return
        self._noted = learner.updates
        found = learner.logger.name_to_value
        scalars = {learner.curve: learner.played}
        scalars |= {name: float(found[f"train/{name}"]) for name in SCALARS if f"train/{name}" in found}
        self._run.log(learner.num_timesteps, scalars)
        self._run.progress(min(learner.num_timesteps, self._run.budget))

    def _store(self) -> None:
        learner = self._learner
        if learner.num_timesteps == self._stored():
            return
        if 2 * learner.num_timesteps >= self._run.budget:
            weights = {name: tensor.detach().cpu().clone() for name, tensor in learner.scorer.state_dict().items()}
            self._kept.append((learner.num_timesteps, weights))
        content = io.BytesIO()
        state = {"updates": learner.updates, "decisions": learner.num_timesteps, "kept": self._kept}
        state |= {"policy": learner.policy.state_dict(), "optimizer": learner.policy.optimizer.state_dict()}
        torch.save(state, content)
        self._run.checkpoint(learner.num_timesteps, content.getvalue())

    def candidates(self) -> list[Candidate]:
        """The policies at the checkpoints of the second half of the budget, the last of them at its end.

        Raises:
            ValueError: weights are beyond what a policy takes.
        """
        scorer = self._learner.scorer
        found = []
        for decisions, weights in self._kept:
            scorer.load_state_dict(weights)
            try:
                found.append(Candidate(f"decision {decisions}", cast(Scorer, scorer).policy()))
            except ValueError as error:
                raise ValueError(
                    f"after {decisions:,} decisions the weights make no policy ({error}); a lower learning rate may "
                    "help"
                ) from error
        return found
