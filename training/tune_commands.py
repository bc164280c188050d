"""`disaggroute tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .executors import PROCESS
from .scenario_options import (
    ClusterFile,
    Dealing,
    Duration,
    ExecutorName,
    Format,
    PredictorName,
    ProfileName,
    Rate,
    RayAddress,
    Routers,
    Scale,
    Targets,
    TightShare,
    Topology,
    Warmup,
    WorkerCount,
    Workload,
    say,
    scenario_of,
    with_rate,
)

if TYPE_CHECKING:
    from rich.table import Table

    from .tuning_choice import Choice
    from .tuning_plan import Plan


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(tune)


def tune(
    policy: Annotated[
        str, typer.Argument(help="Policy; parameters in brackets, or of a file after @, are where the search starts.")
    ],
    workload: Workload = "mixed-bursty-a40",
    evaluations: Annotated[int, typer.Option(help="Candidates that each restart may try.")] = 200,
    tuning_seeds: Annotated[
        int | None, typer.Option(help="Traces of an evaluation. Default: 16; a trace file has 1.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="First tuning seed, 0 to 9999.")] = 0,
    restarts: Annotated[int, typer.Option(help="Independent runs of the optimiser, at least 3.")] = 3,
    population: Annotated[
        int | None, typer.Option(help="Candidates in a generation. Default: by the number of parameters.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the optimisers.")] = 0,
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    routers: Routers = None,
    dealing: Dealing = None,
    rate: Rate = None,
    duration: Duration = None,
    warmup: Warmup = 60.0,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    trace_format: Format = None,
    tight_share: TightShare = None,
    constants_scale: Scale = 1.0,
    validation_seeds: Annotated[
        int | None, typer.Option(help="Traces on which the choice is made. Default: 20; a trace file has 1.")
    ] = None,
    validation_duration: Annotated[
        float | None, typer.Option(help="Their window, seconds. Default: 1800, or the rest of a trace file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: results/tune-POLICY-WORKLOAD-CLUSTER-KEY.")
    ] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
) -> None:
    """Fit a policy's parameters to a scenario and write them to a file.

    CMA-ES on tuning seeds; the choice among the best, and the policy as it is, on validation seeds.

    Results go to a folder: tuned.yaml, which `--policies POLICY@FILE` takes, evaluations.csv, tuning.png, validation/.

    What is stored is not run again, so an interrupted tuning goes on with the same command.

    Of a trace file, one half is tuned on and the other validates.

    \b
    disaggroute tune marginal-cost
    disaggroute tune marginal-cost mixed-bursty-a40 --topology 2P4D --evaluations 400
    disaggroute tune "marginal-cost(sample=2)" chat --out results/sampled
    """  # noqa: D301
    from .executors.choice import make_executor
    from .progress import run_progress
    from .tuning import search as run
    from .tuning_choice import choose
    from .tuning_picture import draw_search
    from .tuning_plan import Plan

    scenario = scenario_of(
        workload=workload,
        format=trace_format,
        topology=topology,
        cluster=cluster,
        profile=profile,
        routers=routers,
        dealing=dealing,
        rate=rate,
        duration_s=duration,
        warmup_s=warmup,
        predictor=predictor,
        targets=targets,
        tight_share=tight_share,
        constants_scale=constants_scale,
    )
    plan = Plan(
        policy,
        scenario,
        evaluations=evaluations,
        tuning_seeds=tuning_seeds,
        first_seed=first_seed,
        restarts=restarts,
        population=population,
        seed=seed,
        validation_seeds=validation_seeds,
        validation_duration_s=validation_duration,
    )
    plan.check()
    try:
        with make_executor(executor, workers=workers, ray_address=ray_address) as pool:
            plan = plan.at_rate_of(with_rate(scenario, pool))
            report = plan.setting.traffic.report(plan.scenario.rate)
            if report:
                say(report)
            with run_progress("tuning", "evaluations") as tell:
                search = run(plan, out=out, workers=pool, on_evaluations=tell, say=say)
            with run_progress("validating") as tell:
                choice = choose(search, workers=pool, on_run=tell, say=say)
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the finished generations")
        raise typer.Exit(1) from None
    picture = draw_search(search, search.folder.path / "tuning.png")
    _show(plan, choice, (choice.file, search.folder.path / "evaluations.csv", picture))


def _show(plan: Plan, choice: Choice, files: tuple[Path, ...]) -> None:
    from ..envs.setting import Setting
    from .description import describe
    from .table import NARROWEST, goodput_table, table_console

    console = table_console()
    told = describe(Setting.of(plan.validation_scenario))
    console.print(f"{plan.default.name}, validated on", told.title(plan.validation))
    console.print()
    console.print(goodput_table(choice.comparison, console.width))
    console.print()
    console.print(_parameters(plan, choice))
    console.print()
    if choice.improved:
        text = f"Chosen: {choice.chosen.source}, the best of {choice.validated}."
        text += " It was chosen on these traces, which flatters it a little"
        text += "." if plan.single else "; a claim needs held-out seeds."
    else:
        text = f"None of {choice.validated - 1} others was better on these traces than the default, which stays."
    console.print(f"{text} Intervals: {choice.comparison.interval}.", width=NARROWEST)
    for path in files:
        console.print(str(path), soft_wrap=True)


def _parameters(plan: Plan, choice: Choice) -> Table:
    """What the search could choose: the default's value, the tuned one, and the bounds."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from .tuning_plan import value_at

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("parameter", overflow="fold")
    for name in ("default", "tuned", "from", "to"):
        table.add_column(name, justify="right", no_wrap=True)
    for dimension in plan.space:
        values = [value_at(finalist.policy.params, dimension) for finalist in (choice.default, choice.chosen)]
        words = ["none" if value is None else f"{value:g}" for value in values]
        table.add_row(dimension.label, *words, f"{dimension.low:g}", f"{dimension.high:g}")
    return table
