"""What the tests of live environments share: looks into them, and a way to play."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from disaggroute.live.environment import LiveDisaggRouteEnv
from disaggroute.live.service import Service

PROFILE, SCALE = "a40-qwen2.5-3b", 0.1
KEYS = {"dt", "now", "request", "missed", "action_mask", "trace_seed", "fallback"}
AMPLE_S, NO_TIME_S = 1_000.0, 1e-9


def live(env: gym.Env[Any, Any]) -> LiveDisaggRouteEnv:
    found = env.unwrapped
    assert isinstance(found, LiveDisaggRouteEnv)
    return found


def inside(env: gym.Env[Any, Any], do: Callable[[Service], Any]) -> Any:
    """Does something to the router of an environment, in its thread."""
    stage = live(env)._stage
    assert stage is not None and stage.player.episode is not None
    service = stage.player.episode.service

    async def story() -> Any:
        return do(service)

    return stage.thread.run(story())


def rest(env: gym.Env[Any, Any], info: dict[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Plays an episode to its end at random; the return and the infos."""
    total, infos, terminated = 0.0, [], False
    while not terminated:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        assert truncated is False
        total += float(reward)
        infos.append(info)
    return total, infos


def threads() -> int:
    return sum(thread.name == "disaggroute live environment" for thread in threading.enumerate())
