"""A prefill and two decode engines, ten times faster than life, and environments on them that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import disaggroute
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.live.emulated_cluster import EmulatedCluster

from .scene import AMPLE_S, PROFILE, SCALE


@pytest.fixture(scope="module")
def engines() -> Iterator[EmulatedCluster]:
    with EmulatedCluster("1P2D", PROFILE, time_scale=SCALE) as running:
        yield running


@pytest.fixture
def make(engines: EmulatedCluster, tmp_path: Path) -> Iterator[Callable[..., gym.Env[Any, Any]]]:
    """Makes environments that end with the test; by default sixteen short requests, of which four warm up."""
    made: list[gym.Env[Any, Any]] = []

    def make_one(
        requests: int = 16, ttft_s: float = AMPLE_S, output: int = 4, **arguments: Any
    ) -> gym.Env[Any, Any]:
        targets = f"{round(ttft_s * PS_PER_S)},{round(AMPLE_S * PS_PER_S)}"
        rows = [f"{k * 0.25},{20 + k},{output},{targets}" for k in range(requests)]
        head = "arrival_s,prompt_tokens,output_tokens,ttft_target_ps,tpot_target_ps"
        (tmp_path / "trace.csv").write_text("\n".join([head, *rows]) + "\n")
        usual = {"cluster": engines.cluster(), "workload": str(tmp_path / "trace.csv"), "warmup_s": 1.0}
        usual["duration_s"] = requests * 0.25
        made.append(gym.make(disaggroute.ENVIRONMENT, backend="live", **usual | arguments))
        return made[-1]

    yield make_one
    for env in made:
        env.close()
