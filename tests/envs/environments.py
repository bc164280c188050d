"""Settings of environments that the tests share, and ways to drive them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.envs import router_constants
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.envs.trace import Trace
from disaggroute.envs.vector_environment import DisaggRouteVectorEnv
from disaggroute.envs.window import Window

Arguments = dict[str, Any]

PROFILE = "a40-qwen2.5-3b"
SHORT: Arguments = {"config": "mixed-bursty-a40", "duration_s": 4.0, "warmup_s": 1.0}


def pools(prefills: int = 2, decodes: int = 3, mixed: int = 0, **fields: Any) -> Arguments:
    """A cluster as YAML would hold it."""
    sizes = {"prefill": prefills, "decode": decodes} if not mixed else {"mixed": mixed}
    return {role: {"count": size, "profile": PROFILE} for role, size in sizes.items()} | fields


def events(*rows: tuple[float, str, str]) -> list[Arguments]:
    """A failure schedule of (seconds, instance, action)."""
    return [{"at_s": at, "instance": instance, "action": action} for at, instance, action in rows]


TROUBLE = events(
    (0.5, "decode/1", "drain"),
    (1.8, "prefill/0", "kill"),
    (2.2, "decode/0", "kill"),
    (2.6, "prefill/1", "drain"),
    (2.9, "prefill/0", "return"),
    (3.3, "decode/1", "return"),
    (3.9, "decode/2", "kill"),
    (4.2, "decode/2", "return"),
)
"""Kills, drains and returns; from 2.6 s to 2.9 s no prefill instance may be assigned."""

MIXED_TROUBLE = events((1.6, "mixed/0", "kill"), (2.1, "mixed/1", "drain"), (2.4, "mixed/0", "return"))

ARGUMENTS: dict[str, Arguments] = {
    "as it comes": SHORT,
    "overloaded": SHORT | {"rate": 60},
    "aggregated": SHORT | {"topology": "4M", "rate": 25},
    "aggregated, padded, failing": SHORT | {"cluster": pools(mixed=3, events=MIXED_TROUBLE), "rate": 25, "pad_to": [5]},
    "padded": SHORT | {"pad_to": [3, 6], "topology": "1P4D", "rate": 12},
    "kills fail": SHORT | {"cluster": pools(events=TROUBLE), "rate": 12},
    "kills reroute": SHORT | {"cluster": pools(events=TROUBLE, on_kill="reroute"), "rate": 12},
    "kills reroute, mixed": SHORT | {"cluster": pools(mixed=3, events=MIXED_TROUBLE, on_kill="reroute"), "rate": 30},
    "three routers": SHORT | {"cluster": pools(), "routers": 3, "dealing": "random", "rate": 12},
    "three routers, failing": SHORT | {"cluster": pools(routers=3, events=TROUBLE, on_kill="reroute"), "rate": 12},
    "first token from prefill": SHORT | {"cluster": pools(first_token="prefill"), "rate": 12},
    "noisy predictor": SHORT | {"predictor": "noisy(0.7)"},
    "regression": SHORT | {"predictor": "prompt(mode=regression)", "constants_scale": 0.135},
    "full observability": SHORT | {"observability": "full"},
    "relative targets": SHORT | {"targets": "relative", "rate": 12},
    "goodput": SHORT | {"reward": "goodput"},
    "latency": SHORT | {"reward": "latency"},
    "latency, failing": SHORT | {"reward": "latency", "cluster": pools(events=TROUBLE, on_kill="reroute"), "rate": 12},
    "no warm-up": SHORT | {"warmup_s": 0.0},
}
"""Arguments of environments that differ in what matters to their code; each episode is a few seconds long."""


def masked_sample(env: DisaggRouteEnv) -> Any:
    """A random action that the masks allow."""
    return env.action_space.sample(mask=masks_of(env))  # type: ignore[arg-type]


def masks_of(env: DisaggRouteEnv) -> Any:
    """The masks in the form in which `sample` takes them."""
    flat = env.action_masks().astype(np.int8)
    if "mixed" in env.observation_space.spaces:  # type: ignore[attr-defined]
        return flat
    prefills = env.observation_space["prefill"].shape[0]  # type: ignore[index]
    return flat[:prefills], flat[prefills:]


@dataclass(frozen=True)
class Step:
    """One step of an episode: what was done, and what came back."""

    action: Any
    observation: dict[str, npt.NDArray[np.float32]]
    reward: float
    terminated: bool
    info: Arguments


def rollout(env: DisaggRouteEnv, act: Callable[[DisaggRouteEnv], Any] = masked_sample) -> Iterator[Step]:
    """Steps to the end of an episode that has begun; what is sampled is the same at every call."""
    env.action_space.seed(0)
    terminated = False
    while not terminated:
        action = act(env)
        observation, reward, terminated, truncated, info = env.step(action)
        assert truncated is False
        yield Step(action, observation, reward, terminated, info)


@dataclass(frozen=True)
class Episode:
    """What an environment told of a whole episode.

    Attributes:
        times: ps of each decision, and of the end of the last request.
        steps: what each step gave.
        records: of all requests.
    """

    times: list[int]
    steps: list[Step]
    records: npt.NDArray[np.void]

    def step_of(self, known_at: Callable[[int], bool]) -> int:
        """The step in which something became known: that to the first decision (or the end) that knows it."""
        return next(k for k, now in enumerate(self.times[1:]) if known_at(now))

    @property
    def missed(self) -> list[tuple[int, ...]]:
        """By step."""
        return [step.info["missed"] for step in self.steps]

    @property
    def rewards(self) -> list[float]:
        """By step."""
        return [step.reward for step in self.steps]


def open_from(available: npt.NDArray[np.bool_], index: int) -> int:
    """The instance of this index, or the next one upwards, cyclically, that may be assigned."""
    turns = np.roll(np.arange(len(available)), -index)
    return int(turns[available[turns]][0])


def play(env: DisaggRouteEnv, assignment: tuple[Sequence[int], Sequence[int]], seed: int = 0) -> Episode:
    """An episode that is routed by request as an assignment says."""
    _, info = env.reset(seed=seed)
    prefills = len(env.simulator.cluster.prefill)
    times, steps = [env.simulator.now], []

    def act(env: DisaggRouteEnv) -> Any:
        mask, request = env.action_masks(), info["request"]
        decode = open_from(mask[prefills:], int(assignment[1][request]))
        return (open_from(mask[:prefills], int(assignment[0][request])), decode) if prefills else decode

    for step in rollout(env, act):
        info = step.info
        steps.append(step)
        times.append(env.simulator.now)
    records = env.simulator.records.copy()
    times[-1] = max(times[-2], int(records["end"].max()))
    return Episode(times, steps, records)


class FixedTraffic:
    """The same requests at every reset."""

    name, single, own_rate = "fixed", False, 1.0

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def trace(self, rate: float | None, end_s: float, seed: int) -> Trace:
        return self._trace

    def whole_s(self, rate: float | None, warmup_s: float) -> float | None:
        return None

    def report(self, rate: float | None) -> str:
        return ""

    def configuration(self) -> Arguments:
        return {}


def fixed_setting(trace: Trace, cluster: Cluster, start: int) -> Callable[[Scenario], Setting]:
    """What to put in the place of `Setting.of`; the window goes from `start` (ps) to the last arrival."""
    window = Window(start, int(trace.arrival[-1]) + 1)

    class FixedSetting(Setting):
        @property
        def window(self) -> Window:
            return window

    constants = router_constants.from_cluster(cluster)
    return lambda scenario: FixedSetting(scenario, cluster, 1, constants, FixedTraffic(trace))


def environment_of(trace: Trace, cluster: Cluster, *, start: int = 0, **arguments: Any) -> DisaggRouteEnv:
    """An environment over a trace and a cluster in integers, whose warm start ends at `start` (ps)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Setting, "of", fixed_setting(trace, cluster, start))
        return DisaggRouteEnv(**arguments)


def vector_environment_of(
    trace: Trace, cluster: Cluster, *, num_envs: int = 2, start: int = 0, **arguments: Any
) -> DisaggRouteVectorEnv:
    """Likewise, many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Setting, "of", fixed_setting(trace, cluster, start))
        return DisaggRouteVectorEnv(num_envs, **arguments)
