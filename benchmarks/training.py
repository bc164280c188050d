"""How many environment steps per second a PPO of Stable-Baselines3 takes, learning included."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from time import perf_counter_ns
from typing import Any

from .drive import Say
from .measurement import Result, at_least
from .vector import CONFIG

LIBRARIES = ("torch", "stable_baselines3")

ENVS = 64
STEPS = 256
BATCH = 4_096
EPOCHS = 4
LAYERS = (64, 64)
THREADS = 1


def missing() -> str | None:
    """The first library that training needs and that is not installed."""
    return next((name for name in LIBRARIES if find_spec(name) is None), None)


def measure(
    *,
    envs: int = ENVS,
    steps: int = STEPS,
    batch: int = BATCH,
    epochs: int = EPOCHS,
    threads: int = THREADS,
    updates: int = 2,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Result]:
    """Environment steps per second over whole updates: the rollout, then the training on it.

    Args:
        envs: environments side by side.
        steps: of each environment in a rollout.
        batch: steps in a minibatch.
        epochs: how often an update goes over its rollout.
        threads: that torch may use.
        updates: per repeat.
        repeats: how often the number is measured, after an update that is not counted.
        seed: of the weights, the traces and the actions.
        say: told what is being done.
        overrides: fields of the configuration that are replaced.

    Returns:
        `train/ppo`, steps/s, with the settings in its details.

    Raises:
        ValueError: a library is missing, a count is below 1, or a rollout is no multiple of `batch`.
    """
    counts = {"envs": envs, "steps": steps, "batch": batch, "epochs": epochs, "threads": threads}
    for key, value in {**counts, "updates": updates, "repeats": repeats}.items():
        at_least(key, value)
    if envs * steps % batch:
        raise ValueError(f"batch is {batch}; it must divide the rollout, envs · steps = {envs * steps}")
    if (name := missing()) is not None:
        raise ValueError(
            f"the library {name} is not installed, and training needs it; `pip install 'disaggroute[train]'`"
        )
    import torch
    from stable_baselines3 import PPO

    from ..training.sb3_vec_env import make_sb3

    say("train/ppo")
    allowed = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        env = make_sb3(CONFIG, num_envs=envs, flatten=True, **dict(overrides or {}))
        model = PPO(
            "MlpPolicy",
            env,
            n_steps=steps,
            batch_size=batch,
            n_epochs=epochs,
            policy_kwargs={"net_arch": list(LAYERS)},
            seed=seed,
            device="cpu",
        )
        model.learn(envs * steps)
        speeds = []
        for _ in range(repeats):
            before, started = model.num_timesteps, perf_counter_ns()
            # Goes on in the episodes that have begun, so nothing is reset here but what ends.
            model.learn(envs * steps * updates, reset_num_timesteps=False)
            speeds.append((model.num_timesteps - before) / ((perf_counter_ns() - started) / 1e9))
        env.close()
    finally:
        torch.set_num_threads(allowed)
    about = {f"layer_{k}": width for k, width in enumerate(LAYERS, 1)}
    return [Result.of("train/ppo", "steps/s", speeds, **counts, updates=updates, **about)]
