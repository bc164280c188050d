"""`disaggroute experiment paper` and `disaggroute experiment conditions`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..executors import PROCESS
from ..scenario_options import ExecutorName, RayAddress, WorkerCount

if TYPE_CHECKING:
    from .condition_map import ConditionMap
    from .experiment import Experiment

File = Annotated[str, typer.Option("--file", help="The experiment: a name in configs/experiments, or a YAML file.")]
Findings = Annotated[
    str | None, typer.Option(help="Names of the findings to look at, separated by commas. Default: all.")
]
Seeds = Annotated[int | None, typer.Option(help="Traces of each condition. Default: the file's.")]
FirstSeed = Annotated[int | None, typer.Option(help="First seed. Default: the file's, 30000 with --claim.")]
Window = Annotated[
    float | None, typer.Option("--duration", help="Window of every condition, s. Default: the file's.")
]
Out = Annotated[Path | None, typer.Option(help="Results folder. Default: results/experiment-NAME.")]
Figures = Annotated[
    bool, typer.Option("--figures/--no-figures", help="Whether to draw figures and write the page.")
]
QuickFlag = Annotated[bool, typer.Option("--quick", help="Few short traces, to see that it works; no result.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(paper)
    app.command()(conditions)


def paper(
    file: File = "paper",
    findings: Findings = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    duration: Window = None,
    quick: QuickFlag = False,
    out: Out = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Use held-out seeds for a claim; adds a line per condition to the log.")
    ] = False,
    claim_log: Annotated[
        Path | None,
        typer.Option(
            help="The log of held-out evaluations, to be committed. Default: configs/experiments/held-out.log."
        ),
    ] = None,
    figures: Figures = True,
) -> None:
    """Reproduce the study in simulation: what holds of each finding, with intervals, and what does not.

    The rules of the verdicts stand in configs/experiments/paper.yaml; --file names another file of that form.
    Results go to a folder: findings.csv, numbers.csv, figures as PNG, and report.html, one page with all of it.

    What is stored is not run again, so an interrupted experiment goes on with the same command.

    \b
    disaggroute experiment paper
    disaggroute experiment paper --findings highest-mean,frontier
    disaggroute experiment paper --file mine.yaml --seeds 20
    """  # noqa: D301
    from ..executors.choice import make_executor
    from ..held_out import DEFAULT_LOG
    from ..progress import run_progress
    from ..scenario_options import say
    from .config import load
    from .experiment import Experiment
    from .findings import find
    from .plan import Wanted, plan_of
    from .report import write
    from .runs import measure

    if claim_log is not None and not claim:
        raise ValueError(f"claim_log is {claim_log}, but without --claim nothing is logged; give both or neither")
    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    config, known = load(file)
    plan = plan_of(
        config,
        known,
        Wanted(
            findings=_names(findings),
            seeds=seeds,
            first_seed=first_seed,
            duration_s=duration,
            claim=claim,
            quick=quick,
        ),
    )
    folder = out or Path("results") / f"experiment-{config.name}"
    again = command_line(
        "paper",
        file,
        findings=findings,
        seeds=seeds,
        first_seed=first_seed,
        duration=duration,
        quick=quick,
        claim=claim,
    )
    try:
        with pool, run_progress("evaluating") as tell:
            measured = measure(
                plan, out=folder, workers=pool, log=claim_log or DEFAULT_LOG, on_run=tell, say=say
            )
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the finished runs")
        raise typer.Exit(1) from None
    experiment = Experiment(plan, measured, find(config, plan.findings, measured), again)
    try:
        _show(experiment)
    finally:  # Whether or not somebody reads to the end.
        written = write(experiment, folder, figures=figures)
    for path in written:
        typer.echo(path)


def conditions(
    file: Annotated[
        str, typer.Option("--file", help="The map: a name in configs/experiments, or a YAML file.")
    ] = "conditions",
    findings: Findings = None,
    axes: Annotated[
        str | None, typer.Option(help="Names of the axes to vary, separated by commas. Default: all.")
    ] = None,
    seeds: Seeds = None,
    first_seed: Annotated[int | None, typer.Option(help="First seed. Default: the file's.")] = None,
    duration: Window = None,
    quick: QuickFlag = False,
    out: Out = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    figures: Figures = True,
) -> None:
    """Map the conditions under which each finding holds, one axis varied at a time from the default.

    The axes and their points stand in configs/experiments/conditions.yaml; --file names another file of that form.
    Results go to a folder: conditions.csv, conditions.png, the files of workloads, profiles and clusters that the
    points stand for, and conditions.html, one page with all of it.

    What is stored is not run again, so an interrupted map goes on with the same command.

    \b
    disaggroute experiment conditions
    disaggroute experiment conditions --axes burstiness --findings highest-mean,frontier --seeds 50
    """  # noqa: D301
    from ..executors.choice import make_executor
    from ..progress import run_progress
    from ..scenario_options import say
    from .condition_map import chosen, map_plan_of, open_folder, run_map
    from .map_report import write_map
    from .plan import Wanted
    from .points import load

    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    config, experiment, known = load(file)
    folder = out or Path("results") / f"experiment-{config.name}"
    wanted = Wanted(
        findings=_names(findings), seeds=seeds, first_seed=first_seed, duration_s=duration, quick=quick
    )
    choice = chosen(config, experiment, wanted, _names(axes))  # Bad input shows here, before a folder exists.
    open_folder(config, folder)
    plan = map_plan_of(config, experiment, known, choice, out=folder)
    again = command_line(
        "conditions",
        file,
        findings=findings,
        axes=axes,
        seeds=seeds,
        first_seed=first_seed,
        duration=duration,
        quick=quick,
    )
    try:
        with pool, run_progress("evaluating") as tell:
            found = run_map(plan, out=folder, command=again, workers=pool, on_run=tell, say=say)
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the finished runs")
        raise typer.Exit(1) from None
    try:
        _show_map(found)
    finally:  # Whether or not somebody reads to the end.
        written = write_map(found, folder, figures=figures)
    for path in written:
        typer.echo(path)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",")]


def command_line(name: str, file: str, **options: Any) -> str:
    """The command line of an experiment, without what is as by default."""
    words = ["disaggroute", "experiment", name, *(["--file", file] if file != name else [])]
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _show(experiment: Experiment) -> None:
    from ..report.terminal import rich_table
    from ..table import NARROWEST, table_console
    from .report import simulator_remarks
    from .tables import count_words, verdict_table

    console = table_console()
    table = verdict_table(experiment)
    console.print(experiment.plan.config.title or experiment.plan.config.name, soft_wrap=True)
    console.print(rich_table(table, console.width, left_out=("study", "rule", "p, adjusted")))
    console.print(f"{count_words(experiment)}.", width=NARROWEST)
    for remark in (table.note, *simulator_remarks(experiment)):
        console.print(remark, width=NARROWEST)
    console.print()


def _show_map(found: ConditionMap) -> None:
    from ..report.terminal import rich_table
    from ..table import NARROWEST, table_console
    from .map_tables import STATES, count_table

    console = table_console()
    table = count_table(found)
    console.print(found.plan.config.title or found.plan.config.name, soft_wrap=True)
    console.print(rich_table(table, console.width, left_out=("rule",)))
    console.print(f"{table.note} {STATES}", width=NARROWEST)
    console.print()
