"""The runs of an experiment: one ordinary evaluation per condition, all on the same workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...envs.setting import Setting
from ..evaluation import OnRun, default_folder, evaluate
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..held_out import DEFAULT_LOG
from ..matrix.rates import RATES, Rates
from ..runs import ResultsFolder
from ..statistics import Estimate, mean_over_seeds
from ..summary import Summary
from .config import Arm
from .plan import Part, Plan, with_rates
from .quantities import QUANTITIES, Floats

RUNS = "runs"
"""Folder of the evaluations in that of an experiment; an evaluation is in a folder of its content."""


@dataclass(frozen=True)
class Measured:
    """What the runs of an experiment gave.

    Attributes:
        parts: the conditions, with their rates.
        summaries: of each policy of each condition, by condition and text as written, in the order of the seeds.
        commands: the command line that makes each condition again, by its name; empty where only Python can.
        folders: where each condition lies, by its name.
    """

    parts: tuple[Part, ...]
    summaries: Mapping[tuple[str, str], tuple[Summary, ...]]
    commands: Mapping[str, str]
    folders: Mapping[str, Path]

    def values(self, arm: Arm, quantity: str = "goodput", seeds: int | None = None) -> Floats:
        """(S,) a number of each run of a policy, of the first `seeds` traces; it may not be finite."""
        return QUANTITIES[quantity].values(self.summaries[arm.condition, arm.policy][:seeds])

    def estimate(self, arm: Arm, quantity: str = "goodput") -> Estimate:
        """Mean over the traces of a number of a policy, with its interval, in the unit in which it is shown."""
        kind = QUANTITIES[quantity]
        return mean_over_seeds(kind.shown * self.values(arm, quantity))

    def ceiling(self, condition: str) -> float:
        """Mean share of a condition's requests that meet both targets alone."""
        some = next(each for (name, _), each in self.summaries.items() if name == condition)
        return float(np.mean([summary.ceiling for summary in some]))


def measure(
    plan: Plan,
    *,
    out: Path,
    workers: int | Executor | None = None,
    log: Path = DEFAULT_LOG,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Measured:
    """Evaluates the policies in every condition, in folders of their content below `out`.

    Runs that the folders already hold are not repeated.

    Args:
        plan: what to run.
        out: the experiment's folder.
        workers: processes, None for one per core; or an executor, which is used and kept.
        log: where a claim is noted, once per condition.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: a folder of another experiment, or what `evaluate` says; names the condition.
        OSError: the folder cannot be written.
    """
    tell = say or (lambda _: None)
    ResultsFolder.open(out, {"experiment": plan.config.name}, {"name": plan.config.name, "notes": plan.config.notes})
    with executor_of(workers) as pool:
        parts = with_rates(plan, Rates(out / RATES), workers=pool, say=tell)
        return evaluated(
            parts, plan.seeds, out=out, pool=pool, claim=plan.claim, log=log, total=plan.runs, on_run=on_run, say=tell
        )


def evaluated(
    parts: tuple[Part, ...],
    seeds: range,
    *,
    out: Path,
    pool: Executor,
    claim: bool = False,
    log: Path = DEFAULT_LOG,
    before: int = 0,
    total: int,
    on_run: OnRun | None = None,
    say: Callable[[str], None],
) -> Measured:
    """Evaluates conditions whose rates are known.

    Args:
        parts: the conditions.
        seeds: one trace each.
        out: the experiment's folder.
        pool: does the runs.
        claim: whether the seeds are held out, for a claim.
        log: where a claim is noted.
        before: runs that were done before.
        total: runs in all.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: what `evaluate` says; names the condition.
        OSError: a folder cannot be written.
    """
    summaries: dict[tuple[str, str], tuple[Summary, ...]] = {}
    commands, folders = {}, {}
    done = before
    for part in parts:

        def told(finished: int, _: int, done: int = done) -> None:
            if on_run:
                on_run(done + finished, total)

        folder = out / RUNS / default_folder(Setting.of(part.scenario)).name
        try:
            evaluation = evaluate(
                part.scenario,
                part.labels,
                seeds,
                out=folder,
                records="none",
                workers=pool,
                claim=claim,
                log=log,
                on_run=told,
                say=say,
            )
        except ValueError as error:
            raise ValueError(f"condition {part.name}: {error}") from error
        for written, text in part.policies.items():
            summaries[part.name, written] = tuple(run.summary for run in evaluation.runs[text])
        commands[part.name], folders[part.name] = evaluation.asked.command, folder
        done += len(part.labels) * len(seeds)
    return Measured(parts, summaries, commands, folders)
