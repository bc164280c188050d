"""Trials: many policies on the same traces, on all cores; what searches evaluate their candidates by.

A task is a trace with as many policies as leave work for all workers: a trace is made once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..envs.scenario import Scenario
from ..envs.setting import Prepared, Setting
from ..policies import registry
from ..policies.policy import Policy
from .executors.executor import Executor
from .metrics import goodput

Floats = npt.NDArray[np.float64]

Measure = Callable[[npt.NDArray[Any], Prepared], Sequence[float]]
"""Numbers of a run from its records and its trace; importable by name, since it travels to the workers."""


class Policies(Protocol):
    """Some policies in a form that travels to a worker and is made there."""

    def __len__(self) -> int:
        """How many."""

    def part(self, first: int, last: int) -> Policies:
        """Those from number `first` to before `last`."""

    def made(self) -> Iterator[Policy]:
        """The policies, one after the other."""


@dataclass(frozen=True)
class Named:
    """One policy with several parameters.

    Attributes:
        name: of the policy.
        params: of each.
    """

    name: str
    params: Sequence[dict[str, Any]]

    def __len__(self) -> int:
        """How many."""
        return len(self.params)

    def part(self, first: int, last: int) -> Named:
        """Those from number `first` to before `last`."""
        return Named(self.name, self.params[first:last])

    def made(self) -> Iterator[Policy]:
        """The policies, one after the other."""
        return (registry.make(self.name, **params) for params in self.params)


@dataclass(frozen=True)
class Job:
    """A scenario, traces, and the policies that meet all of them.

    Attributes:
        scenario: what is run.
        seeds: of the traces.
        policies: who decides.
    """

    scenario: Scenario
    seeds: Sequence[int]
    policies: Policies


@dataclass(frozen=True)
class Trial:
    """Some policies on one trace.

    Attributes:
        scenario: what is run.
        seed: of the trace.
        policies: who decides.
        job: number of the job.
        first: place of the first policy among those of the job.
        measure: what is wanted of each run.
    """

    scenario: Scenario
    seed: int
    policies: Policies
    job: int
    first: int
    measure: Measure


def goodput_alone(records: npt.NDArray[Any], prepared: Prepared) -> tuple[float]:
    """A measure: the goodput."""
    return (goodput(records, prepared),)


def run_trials(jobs: Sequence[Job], pool: Executor, measure: Measure = goodput_alone) -> list[Floats]:
    """Runs the policies of every job on its traces.

    Args:
        jobs: what is to be run.
        pool: runs them.
        measure: what is wanted of each run.

    Returns:
        Of each job (policies, seeds, numbers of the measure).
    """
    traces = sum(len(job.seeds) for job in jobs)
    pieces = 1 if pool.count == 1 else -(-2 * pool.count // traces)
    trials = [
        Trial(job.scenario, seed, job.policies.part(first, last), number, first, measure)
        for number, job in enumerate(jobs)
        for seed in job.seeds
        for first, last in _pieces(len(job.policies), pieces)
    ]
    found: list[dict[tuple[int, int], Sequence[float]]] = [{} for _ in jobs]
    columns = [{seed: k for k, seed in enumerate(job.seeds)} for job in jobs]
    for trial, numbers in pool.run(run_trial, trials):
        for k, values in enumerate(numbers):
            found[trial.job][trial.first + k, columns[trial.job][trial.seed]] = values
    return [
        np.array([[of[k, column] for column in range(len(job.seeds))] for k in range(len(job.policies))], np.float64)
        for job, of in zip(jobs, found, strict=True)
    ]


def _pieces(count: int, pieces: int) -> list[tuple[int, int]]:
    """Parts of `count` things, about alike, none empty."""
    cuts = sorted({count * k // pieces for k in range(pieces + 1)})
    return list(pairwise(cuts))


@dataclass(frozen=True)
class Place:
    """Where the numbers of a trial belong."""

    job: int
    seed: int
    first: int


def run_trial(trial: Trial) -> tuple[Place, list[Sequence[float]]]:
    """Where they belong, and the numbers of each policy (in a worker process)."""
    setting = Setting.of(trial.scenario)
    prepared = setting.prepare(trial.seed)
    numbers = []
    for policy in trial.policies.made():
        result = setting.simulate(prepared, policy, trial.seed)
        numbers.append(trial.measure(result.records, prepared))
    return Place(trial.job, trial.seed, trial.first), numbers
