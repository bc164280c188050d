"""Evaluation: several policies on the same traces, stored run by run and resumed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

from .. import __version__
from ..envs.records import SCHEMA_VERSION
from ..envs.scenario import Scenario
from ..envs.setting import Prepared, Setting
from ..policies import registry
from ..policies.policy import Policy
from ..policies.policy_text import split_at_commas
from .compilation import compile_all
from .description import command, describe
from .held_out import DEFAULT_LOG, log_claim
from .metrics import met_targets, summarise
from .record_table import record_table
from .results import Asked, write_asked
from .runs import RESULTS_SCHEMA, ResultsFolder, Run, fingerprint
from .seeds import check_claim, refuse_held_out
from .source_hash import source_hash
from .summary import Summary
from .workers import Workers, check_workers

Records = Literal["first", "all", "none"]
RECORDS: tuple[Records, ...] = ("first", "all", "none")

OnRun = Callable[[int, int], None]
"""Told after each run: runs done, runs in all."""


@dataclass(frozen=True)
class Task:
    """One run to do: a policy on the trace of a seed, stored in `folder`."""

    scenario: Scenario
    label: str
    policy_hash: object
    seed: int
    folder: ResultsFolder
    records: bool


@dataclass(frozen=True)
class Evaluation:
    """Finished runs of an evaluation.

    Attributes:
        setting: what was run.
        folder: where the results lie.
        labels: policies, in the order asked for.
        seeds: seeds, one trace each.
        runs: by label, in the order of the seeds.
        asked: what the folder keeps of all this.
    """

    setting: Setting
    folder: ResultsFolder
    labels: tuple[str, ...]
    seeds: range
    runs: dict[str, tuple[Run, ...]]
    asked: Asked

    @property
    def single(self) -> bool:
        """Whether there is one recorded trace, whose interval comes from its own segments."""
        return self.setting.traffic.single

    @property
    def title(self) -> str:
        """What was run, in one line."""
        return describe(self.setting).title(self.seeds)


def evaluate(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: range,
    *,
    out: Path | None = None,
    records: Records = "first",
    workers: int | Workers | None = None,
    claim: bool = False,
    log: Path = DEFAULT_LOG,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Evaluation:
    """Runs every policy on the trace of every seed and stores the results.

    Runs that the folder already holds are not repeated. Several processes are started from a spawned
    interpreter, so a script that calls this must guard its main part with `if __name__ == "__main__":`.

    Args:
        scenario: what drives which cluster; its rate must be known.
        policies: policy names, with parameters in brackets where wanted, such as `marginal-cost(w_q=0.1)`.
        seeds: one trace each.
        out: results folder; by default `default_folder(setting)`.
        records: of which runs to keep the records: of the first seed, of all, of none.
        workers: processes, None for one per core; or workers that are to be used and kept.
        claim: whether the evaluation is to carry a claim (held-out seeds, and a line in the log).
        log: where the line goes.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: an unknown name, a value out of range, seeds that may not be used, a request that does not
            fit, or a folder of another configuration.
        OSError: the folder cannot be written.
    """
    labels = check_evaluation(scenario, policies, seeds, records=records, workers=workers, claim=claim)
    setting = Setting.of(scenario)
    _check_window(setting)
    setting.prepare(seeds[0])  # Bad input shows here, before a folder or a process exists.
    described = describe(setting).model_dump(mode="json", exclude_defaults=True)
    folder = ResultsFolder.open(out or default_folder(setting), configuration(setting), described)
    folder.runs()  # One that is unreadable should not be found when all else is done.
    again = command(scenario, labels, seeds, records=records, claim=claim)
    cards = {label: policy_card(label) for label in labels}
    asked = Asked(command=again, policies=cards, seeds=tuple(seeds))
    write_asked(folder, asked)
    done: dict[tuple[str, int], Run] = {}
    tasks = []
    for seed in seeds:
        for label in labels:
            keep = records == "all" or (records == "first" and seed == seeds[0])
            card = cards[label]
            run = folder.read(card, seed, records=keep)
            if run is None:
                tasks.append(Task(scenario, label, card["hash"], seed, folder, keep))
            else:
                done[label, seed] = run
    total = len(seeds) * len(labels)
    if tasks:
        in_python = any(not hasattr(registry.parse(label), "run_compiled") for label in labels)
        compile_all(say or (lambda _: None), interactive=in_python)
    if claim and tasks:
        log_claim(log, folder.key, labels, seeds, setting)
        if say:
            say(f"noted in {log}, which belongs into the repository")
    if on_run:
        on_run(len(done), total)
    _run(tasks, done, folder, workers, lambda: on_run(len(done), total) if on_run else None)
    folder.sweep()  # Workers of a killed evaluation outlive it for a moment.
    runs = {label: tuple(done[label, seed] for seed in seeds) for label in labels}
    folder.write_summary(folder.runs())
    folder.write_records([runs[label][0] for label in labels])
    write_asked(folder, asked)  # Again: another process may have asked for other runs since.
    return Evaluation(setting, folder, labels, seeds, runs, asked)


def _check_window(setting: Setting) -> None:
    """Refuses a window that goes on after the end of a recorded trace: nothing would happen in its last part."""
    whole = setting.traffic.whole_s(setting.scenario.rate, setting.scenario.warmup_s)
    if whole is not None and setting.duration_s > whole + 1e-6:
        raise ValueError(
            f"duration is {setting.duration_s:g} s, but {setting.traffic.name} ends {whole:.6g} s after the warm-up"
        )


def _run(
    tasks: list[Task],
    done: dict[tuple[str, int], Run],
    folder: ResultsFolder,
    workers: int | Workers | None,
    tell: Callable[[], None],
) -> None:
    written = time.monotonic()
    with Workers.of(workers) as pool:
        for run in pool.run(run_task, tasks):
            done[run.label, run.seed] = run
            tell()
            # What is done so far is always readable as a table, at a small cost.
            if time.monotonic() - written > 2.0:
                folder.write_summary(folder.runs())
                written = time.monotonic()


def run_task(task: Task) -> Run:
    """Does one run and stores it (in a worker process).

    Raises:
        ValueError: the policy's file changed since the evaluation began.
        OSError: the results cannot be written.
    """
    card = policy_card(task.label)
    if card["hash"] != task.policy_hash:
        raise ValueError(f"{task.label}: the policy file changed during the evaluation; start it again")
    setting = Setting.of(task.scenario)
    prepared = setting.prepare(task.seed)
    policy = registry.parse(task.label)
    result = setting.simulate(prepared, policy, task.seed, log_decisions=task.records)
    run = Run(
        schema_version=RESULTS_SCHEMA,
        experiment=task.folder.key,
        label=task.label,
        policy=card,
        seed=task.seed,
        summary=summary_of(result.records, prepared, setting),
    )
    table = None
    if task.records:
        met = met_targets(result.records, prepared.trace)
        table = record_table(result, prepared, met, label=task.label, policy=run.policy, seed=task.seed)
    task.folder.write(run, table)
    return run


def summary_of(records: npt.NDArray[Any], prepared: Prepared, setting: Setting) -> Summary:
    """Summary of a run's records in a setting."""
    return summarise(
        records,
        prepared.trace,
        prepared.window,
        pools=setting.pools,
        gpus=setting.gpus,
        alone=prepared.alone,
        feasible=prepared.feasible,
    )


def check_evaluation(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: range,
    *,
    records: str = "first",
    workers: int | Workers | None = None,
    claim: bool = False,
) -> tuple[str, ...]:
    """Checks what can be checked before a rate is known.

    Returns:
        The labels of the policies.

    Raises:
        ValueError: an unknown name, a value out of range, or seeds that may not be used.
    """
    if records not in RECORDS:
        raise ValueError(f"records is {records!r}; allowed are {', '.join(RECORDS)}")
    check_workers(workers)
    labels = check_policies(policies)
    setting = Setting.of(scenario)
    setting.check_seeds(seeds)
    for label in labels:
        check_pools(registry.parse(label), setting)
    if claim:
        check_claim(seeds, setting.duration_s)
    else:
        refuse_held_out(seeds, "an evaluation without --claim")
    return labels


def check_pools(policy: Policy, setting: Setting) -> None:
    """Refuses a cluster that a policy's parameters are not made for.

    Raises:
        ValueError: a parameter is made for pools of other sizes.
    """
    pools = setting.pools
    policy.check_pools(pools.get("prefill", 0), pools.get("decode") or pools["mixed"])


def check_policies(policies: Sequence[str]) -> tuple[str, ...]:
    """The labels, each of which names a policy, none twice.

    Raises:
        ValueError: no policy, an unknown one, bad parameters, or one policy twice.
    """
    labels: dict[str, str] = {}
    for text in policies:
        label = text.strip()
        card = policy_card(label)
        key = f"{card['name']} {card['hash']}"
        if key in labels.values():
            raise ValueError(f"policies names {label} twice; each policy runs once on each trace")
        labels[label] = key
    if not labels:
        raise ValueError("policies is empty; at least one policy is needed")
    return tuple(labels)


def policy_card(label: str) -> dict[str, object]:
    """What a run stores of its policy: name, parameters, hash.

    Raises:
        ValueError: the name is unknown or a parameter is not accepted.
    """
    policy = registry.parse(label)
    return {"name": policy.name, "params": dict(policy.params), "hash": policy.hash}


def default_folder(setting: Setting) -> Path:
    """`results/<workload>-<cluster>-<key>`: another configuration gets another folder."""
    name = re.sub(r"[^\w.-]+", "-", setting.name)[:100]
    return Path("results") / f"{name}-{fingerprint(configuration(setting))[:6]}"


def configuration(setting: Setting) -> dict[str, Any]:
    """All that the runs of an experiment have in common; JSON-able."""
    versions = {
        "version": __version__,
        "code": source_hash(),
        "results_schema": RESULTS_SCHEMA,
        "records_schema": SCHEMA_VERSION,
    }
    return versions | setting.configuration()


def split_policies(text: str) -> list[str]:
    """Policies of a comma-separated list; commas inside brackets and quotes belong to parameters and file names."""
    return split_at_commas(text)
