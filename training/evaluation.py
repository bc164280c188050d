"""Evaluation: several policies on the same traces, stored run by run and resumed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

from .. import __version__
from ..envs.backend import Backend, SimulatorBackend
from ..envs.records import SCHEMA_VERSION
from ..envs.scenario import Scenario
from ..envs.setting import Prepared, Setting
from ..policies import registry
from ..policies.policy import Policy
from ..policies.policy_text import split_at_commas
from .compilation import compile_all
from .description import command, describe
from .executors.choice import executor_of
from .executors.executor import Executor
from .held_out import DEFAULT_LOG, log_claim
from .metrics import met_targets, summarise
from .record_table import record_table
from .results import Asked, read_asked, write_asked
from .runs import RESULTS_SCHEMA, ResultsFolder, Run, fingerprint, parquet_bytes
from .seeds import check_claim, refuse_held_out
from .source_hash import source_hash
from .summary import Summary

Records = Literal["first", "all", "none"]
RECORDS: tuple[Records, ...] = ("first", "all", "none")

OnRun = Callable[[int, int], None]
"""Told after each run: runs done, runs in all."""


@dataclass(frozen=True)
class Task:
    """One run to do: a policy on the trace of a seed.

    Attributes:
        scenario: at a known rate.
        label: the policy.
        policy_hash: of what it stood for when the evaluation began.
        seed: of the trace and of all that is random.
        folder: where the run belongs; whoever does it leaves nothing there.
        records: whether its records are wanted.
    """

    scenario: Scenario
    label: str
    policy_hash: object
    seed: int
    folder: ResultsFolder
    records: bool


@dataclass(frozen=True)
class Done:
    """A run that is done, not yet stored.

    Attributes:
        run: its summary.
        records: its records as a Parquet file, where they are wanted.
    """

    run: Run
    records: bytes | None


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
        backend: name of what ran them.
    """

    setting: Setting
    folder: ResultsFolder
    labels: tuple[str, ...]
    seeds: range
    runs: dict[str, tuple[Run, ...]]
    asked: Asked
    backend: str = SimulatorBackend.name

    @property
    def single(self) -> bool:
        """Whether there is one recorded trace, whose interval comes from its own segments."""
        return self.setting.traffic.single

    @property
    def title(self) -> str:
        """What was run, in one line."""
        return describe(self.setting, self.backend).title(self.seeds)


def evaluate(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: range,
    *,
    out: Path | None = None,
    records: Records = "first",
    workers: int | Executor | None = None,
    claim: bool = False,
    log: Path = DEFAULT_LOG,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
    backend: Backend | None = None,
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
        workers: processes, None for one per core; or an executor, which is used and kept.
        claim: whether the evaluation is to carry a claim (held-out seeds, and a line in the log).
        log: where the line goes.
        on_run: told after each run.
        say: told what takes its time beside the runs.
        backend: what runs the policies, made of the same scenario; by default the simulator.

    Raises:
        ValueError: an unknown name, a value out of range, seeds that may not be used, a request that does not
            fit, or a folder of another configuration.
        OSError: the folder cannot be written, or a live cluster is not there.
        RuntimeError: a live cluster is in no state to be measured.
    """
    backend = backend or simulator(scenario)
    setting, tell = backend.setting, say or (lambda _: None)
    executor = executor_of(workers)
    labels = check_evaluation(setting, policies, seeds, records=records, claim=claim)
    _check_window(setting)
    setting.prepare(seeds[0])  # Bad input shows here, before a folder or a process exists.
    described = describe(setting, backend.name).model_dump(mode="json", exclude_defaults=True)
    place = out or default_folder(setting, backend)
    with ResultsFolder.opened(place, configuration(setting, backend), described) as folder:
        folder.runs()  # One that is unreadable should not be found when all else is done.
        again = command(scenario, labels, seeds, records=records, claim=claim, backend=backend)
        cards = {label: policy_card(label) for label in labels}
        if backend.serial:
            check_same_policies(folder, cards)
        asked = Asked(command=again, policies=cards, seeds=tuple(seeds))
        write_asked(folder, asked)
        done: dict[tuple[str, int], Run] = {}
        tasks = []
        for turn, seed in enumerate(seeds):
            for label in labels if not backend.serial else rotated(labels, turn):
                keep = records == "all" or (records == "first" and seed == seeds[0])
                card = cards[label]
                run = folder.read(card, seed, records=keep)
                if run is None:
                    tasks.append(Task(scenario, label, card["hash"], seed, folder, keep))
                else:
                    done[label, seed] = run
        total = len(seeds) * len(labels)
        if tasks and isinstance(backend, SimulatorBackend):
            parsed = [registry.parse(label) for label in labels]
            in_python = any(not hasattr(policy, "run_compiled") for policy in parsed)
            compile_all(tell, interactive=in_python, lookahead=any(policy.name == "lookahead" for policy in parsed))
        elif tasks:
            tell(f"order: {', '.join(f'{task.label} on {task.seed}' for task in tasks)}")
            backend.begin(tell)
        if claim and tasks:
            log_claim(log, folder.key, labels, seeds, setting)
            tell(f"noted in {log}, which belongs into the repository")
        if on_run:
            on_run(len(done), total)
        told = lambda: on_run(len(done), total) if on_run else None  # noqa: E731
        if backend.serial:
            _run(map(partial(run_on, backend, say=tell), tasks), done, folder, told)
        else:
            with executor as pool:
                _run(pool.run(run_task, tasks), done, folder, told)
        runs = {label: tuple(done[label, seed] for seed in seeds) for label in labels}
        folder.write_summary(folder.runs())
        folder.write_records([runs[label][0] for label in labels])
        write_asked(folder, asked)  # Again: another process may have asked for other runs since.
        return Evaluation(setting, folder, labels, seeds, runs, asked, backend.name)


def _check_window(setting: Setting) -> None:
    """Refuses a window that goes on after the end of a recorded trace: nothing would happen in its last part."""
    whole = setting.traffic.whole_s(setting.scenario.rate, setting.scenario.warmup_s)
    if whole is not None and setting.duration_s > whole + 1e-6:
        raise ValueError(
            f"duration is {setting.duration_s:g} s, but {setting.traffic.name} ends {whole:.6g} s after the warm-up"
        )


def check_same_policies(folder: ResultsFolder, cards: dict[str, dict[str, object]]) -> None:
    """Refuses another set of policies than the folder was measured with: they were driven in turn, to share all drift.

    Args:
        folder: of an evaluation on a live cluster.
        cards: name, parameters and hash of each policy asked for, by label.

    Raises:
        ValueError: the folder holds runs of another set.
    """
    known = {run.label: run.policy for run in folder.runs()}
    if not known:
        return
    before: Asked | None = None
    with suppress(ValueError):  # Damaged or not: what the evaluation asks for now is written anew.
        before = read_asked(folder.path)
    known = before.policies if before else known
    hashes, asked = ({card["hash"] for card in some.values()} for some in (known, cards))
    # Of a folder that has lost what was asked for, the runs are known: they may be some of what is asked for now.
    if not hashes <= asked or (before is not None and hashes != asked):
        raise ValueError(
            f"policies is {', '.join(cards)}, but {folder.path} was measured with {', '.join(known)}, "
            "in turn; name the same ones, or another folder by --out"
        )


def rotated(labels: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """Policies in the order of a seed: each comes first in turn, so that all share a drift of the engines."""
    turn %= len(labels)
    return labels[turn:] + labels[:turn]


def _run(
    runs: Iterable[Done], done: dict[tuple[str, int], Run], folder: ResultsFolder, tell: Callable[[], None]
) -> None:
    """Stores runs as they are done."""
    written = time.monotonic()
    for each in runs:
        run = each.run
        folder.write(run, each.records)
        done[run.label, run.seed] = run
        tell()
        # What is done so far is always readable as a table, at a small cost.
        if time.monotonic() - written > 2.0:
            folder.write_summary(folder.runs())
            written = time.monotonic()


def run_task(task: Task) -> Done:
    """Does one run on the simulator (in a worker process).

    Raises:
        ValueError: a file that the run depends on is another one than when the evaluation began, or than there.
    """
    backend = simulator(task.scenario)
    if fingerprint(configuration(backend.setting, backend)) != task.folder.key:
        raise ValueError(
            f"{backend.setting.name}: files of the program or of the scenario are not what they were when the "
            "evaluation began; start it again"
        )
    return run_on(backend, task, lambda _: None)


def run_on(backend: Backend, task: Task, say: Callable[[str], None]) -> Done:
    """Does one run.

    Raises:
        ValueError: the policy's file changed since the evaluation began.
        OSError: what runs it is not there, or cannot write what it keeps.
        RuntimeError: what runs it is in no state to be measured.
    """
    card = policy_card(task.label)
    if card["hash"] != task.policy_hash:
        raise ValueError(f"{task.label}: the policy file changed during the evaluation; start it again")
    setting = backend.setting
    prepared = setting.prepare(task.seed)
    place = task.folder.place(backend.name, card, task.seed)
    result = backend.run(prepared, task.label, task.seed, log_decisions=task.records, place=place, say=say)
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
    return Done(run, None if table is None else parquet_bytes(table))


def simulator(scenario: Scenario) -> SimulatorBackend:
    """The simulator, for a scenario.

    Raises:
        ValueError: as `Setting.of`.
    """
    return SimulatorBackend(Setting.of(scenario), registry.parse)


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
    scenario: Scenario | Setting,
    policies: Sequence[str],
    seeds: range,
    *,
    records: str = "first",
    claim: bool = False,
) -> tuple[str, ...]:
    """Checks what can be checked before a rate is known, of a scenario or of what its names stand for.

    Returns:
        The labels of the policies.

    Raises:
        ValueError: an unknown name, a value out of range, or seeds that may not be used.
    """
    if records not in RECORDS:
        raise ValueError(f"records is {records!r}; allowed are {', '.join(RECORDS)}")
    labels = check_policies(policies)
    setting = scenario if isinstance(scenario, Setting) else Setting.of(scenario)
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


def default_folder(setting: Setting, backend: Backend | None = None) -> Path:
    """`results/<workload>-<cluster>-<key>`: another configuration gets another folder."""
    live = "" if backend is None or isinstance(backend, SimulatorBackend) else f"{backend.name}-"
    name = re.sub(r"[^\w.-]+", "-", setting.name)[:100]
    return Path("results") / f"{name}-{live}{fingerprint(configuration(setting, backend))[:6]}"


def configuration(setting: Setting, backend: Backend | None = None) -> dict[str, Any]:
    """All that the runs of an experiment have in common; JSON-able."""
    versions = {
        "version": __version__,
        "code": source_hash(backend.sources if backend else ()),
        "results_schema": RESULTS_SCHEMA,
        "records_schema": SCHEMA_VERSION,
    }
    return versions | setting.configuration() | (backend.configuration() if backend else {})


def split_policies(text: str) -> list[str]:
    """Policies of a comma-separated list; commas inside brackets and quotes belong to parameters and file names."""
    return split_at_commas(text)
