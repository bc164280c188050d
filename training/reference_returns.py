"""Reference returns: what the baselines earn in the registered environments, stored with each version of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from .. import ENVIRONMENT
from ..envs import catalog, environment_config
from ..policies import registry
from .executors.choice import executor_of
from .executors.executor import Executor
from .runs import write_atomically
from .seeds import VALIDATION, refuse_held_out, seeds_from

KIND = "experiments"
"""Folder of `configs/` that holds them."""

VERSION = ENVIRONMENT.rpartition("-")[2]
FILE = Path(__file__).parents[1] / "configs" / KIND / f"returns-{VERSION}.yaml"
"""The stored returns of the present version."""

BASELINES = (
    "random",
    "round-robin",
    "least-loaded",
    "power-of-two",
    "length-threshold",
    "least-ttft",
    "min-tpot",
    "marginal-cost",
    "least-ttft(decode=min-tpot)",
)

SEEDS = 20

HEADER = """\
# What the baselines earn in {environment}: whole episodes of the registered configurations with their own reward, one
# per seed; the warm start is routed by least-loaded. The command plays what the file does not hold yet.
"""


class Earned(BaseModel):
    """What one policy earned in one configuration.

    Attributes:
        mean_return: over the seeds.
        mean_goodput: share of the requests that met both targets, mean over the seeds.
        returns: by seed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_return: float
    mean_goodput: float
    returns: tuple[float, ...]


class ReferenceReturns(BaseModel):
    """The whole file.

    Attributes:
        environment: the version.
        command: makes it again.
        first_seed: seed of the first episode; the others follow.
        seeds: episodes per policy.
        configurations: by configuration and policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str
    command: str
    first_seed: int
    seeds: int
    configurations: dict[str, dict[str, Earned]] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> ReferenceReturns:
        for config, policies in self.configurations.items():
            for policy, earned in policies.items():
                if len(earned.returns) != self.seeds:
                    raise ValueError(
                        f"configurations.{config}.{policy}: returns has {len(earned.returns)} entries; "
                        f"it must have {self.seeds}, one per seed"
                    )
        return self


def read(path: Path = FILE) -> ReferenceReturns:
    """The stored returns.

    Raises:
        ValueError: the file cannot be read or is malformed.
    """
    return catalog.validate(ReferenceReturns, catalog.read(KIND, path), str(path))


@dataclass(frozen=True)
class Task:
    """Episodes of one policy in one configuration."""

    config: str
    policy: str
    seeds: range


def earn(task: Task) -> Earned:
    """Plays the episodes (in a worker process)."""
    from ..envs.environment import DisaggRouteEnv
    from ..policies.agent import PolicyAgent

    agent = PolicyAgent(task.policy, DisaggRouteEnv(task.config))
    played = [agent.play(seed) for seed in task.seeds]
    returns = tuple(total for total, _ in played)
    return Earned(
        mean_return=sum(returns) / len(returns),
        mean_goodput=sum(outcome["goodput"] for _, outcome in played) / len(played),
        returns=returns,
    )


def _earn(task: Task) -> tuple[Task, Earned]:
    return task, earn(task)


def update(
    path: Path,
    configs: Sequence[str],
    policies: Sequence[str],
    *,
    first_seed: int = VALIDATION.first,
    seeds: int = SEEDS,
    again: bool = False,
    workers: int | Executor | None = 1,
    on_task: Callable[[int, int], None] | None = None,
) -> ReferenceReturns:
    """Plays what the file does not hold yet, and stores it policy by policy.

    Args:
        path: the file; created if need be.
        configs: names of registered configurations.
        policies: names, with parameters where wanted.
        first_seed: of the episodes.
        seeds: episodes per policy.
        again: play also what the file holds.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_task: told after each policy: done, in all.

    Raises:
        ValueError: an unknown name, held-out seeds, or a file for other seeds.
        OSError: the file cannot be written.
    """
    chosen = seeds_from(first_seed, seeds)
    refuse_held_out(chosen, "reference returns")
    for name in configs:
        if name not in environment_config.names():
            raise ValueError(catalog.unknown("environment", name, environment_config.names()))
    labels = [str(registry.parse(text)) for text in policies]
    found = _opened(path, first_seed, seeds)
    tasks = [
        Task(config, label, chosen)
        for config in configs
        for label in labels
        if again or label not in found.configurations.get(config, {})
    ]
    total, done = len(configs) * len(labels), len(configs) * len(labels) - len(tasks)
    if on_task:
        on_task(done, total)
    with executor_of(workers) as pool:
        for task, earned in pool.run(_earn, tasks):
            found = _with(found, task, earned)
            _write(path, found)
            done += 1
            if on_task:
                on_task(done, total)
    return found


def _opened(path: Path, first_seed: int, seeds: int) -> ReferenceReturns:
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"out is {path}; it must end in .yaml")
    command = f"disaggroute returns --first-seed {first_seed} --seeds {seeds}"
    new = ReferenceReturns(environment=ENVIRONMENT, command=command, first_seed=first_seed, seeds=seeds)
    if not path.exists():
        return new
    found = read(path)
    for key in ("environment", "first_seed", "seeds"):
        if getattr(found, key) != getattr(new, key):
            raise ValueError(
                f"out is {path}, whose {key} is {getattr(found, key)} and not {getattr(new, key)}; name another file"
            )
    return found


def _with(found: ReferenceReturns, task: Task, earned: Earned) -> ReferenceReturns:
    known = {config: dict(policies) for config, policies in found.configurations.items()}
    known.setdefault(task.config, {})[task.policy] = earned
    ordered = {config: dict(_in_order(known[config])) for config in sorted(known)}
    return found.model_copy(update={"configurations": ordered})


def _in_order(policies: dict[str, Earned]) -> Iterator[tuple[str, Earned]]:
    """By name, the baselines first: the same file whatever finished first."""
    names = [name for name in BASELINES if name in policies]
    yield from ((name, policies[name]) for name in [*names, *sorted(policies.keys() - set(names))])


def _write(path: Path, found: ReferenceReturns) -> None:
    import yaml

    content: dict[str, Any] = found.model_dump(mode="json")
    for policies in content["configurations"].values():
        for earned in policies.values():
            earned["mean_goodput"] = round(earned["mean_goodput"], 6)
            earned["returns"] = [int(value) if value == int(value) else value for value in earned["returns"]]
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110)
    write_atomically(path, (HEADER.format(environment=found.environment) + text).encode())
