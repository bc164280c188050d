"""`disaggroute check-scenario`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .executors import PROCESS
from .scenario_options import (
    ClusterFile,
    ExecutorName,
    PredictorName,
    ProfileName,
    RayAddress,
    Targets,
    Topology,
    Warmup,
    WorkerCount,
    saturate_aloud,
    say,
    scenario_of,
)

if TYPE_CHECKING:
    from .scenario_check import ScenarioCheck

TABLE = "scenario-check.csv"
"""The table, in the results folder."""


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(check_scenario)


def check_scenario(
    workload: Annotated[str, typer.Argument(help="Workload family (`disaggroute list workloads`) or its YAML file.")],
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second. Default: the stored saturation rate, else it is searched for."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Traces per policy.")] = 50,
    first_seed: Annotated[int, typer.Option(help="First seed.")] = 20_000,
    duration: Annotated[float, typer.Option(help="Length of the measurement window, simulated seconds.")] = 1_800.0,
    warmup: Warmup = 60.0,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    also: Annotated[str, typer.Option(help="Policies to show beside those that are judged.")] = "",
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/WORKLOAD-CLUSTER-KEY.")] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
) -> None:
    """Check that both routing decisions matter in a scenario.

    They do where round robin reaches 0.84 of the ceiling and smart routing of prefill alone and of decode alone,
    the other stage in turn, each gain at least 2 points of goodput with an interval above zero.

    Prints the gains, which targets were missed, and PASS or FAIL for each part; exit code 1 if one fails. The table
    is also written to scenario-check.csv in the results folder.

    \b
    disaggroute check-scenario mixed-bursty
    disaggroute check-scenario my-mix.yaml --profile h100-qwen3-8b --seeds 10 --also marginal-cost
    """  # noqa: D301
    from ..envs.setting import Setting
    from .evaluation import check_evaluation, evaluate, split_policies
    from .executors.choice import make_executor
    from .progress import run_progress
    from .scenario_check import check_of, check_stages, policies, write_table
    from .seeds import SATURATION, seeds_from

    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    scenario = scenario_of(
        workload=workload,
        topology=topology,
        cluster=cluster,
        profile=profile,
        rate=rate,
        duration_s=duration,
        warmup_s=warmup,
        predictor=predictor,
        targets=targets,
    )
    chosen = seeds_from(first_seed, seeds, within=SATURATION)
    setting = Setting.of(scenario)
    if setting.traffic.single:
        raise ValueError(f"{workload} is a trace file; a scenario is checked on many traces of a workload family")
    check_stages(setting.pools)
    labels = check_evaluation(scenario, policies(split_policies(also)), chosen, records="none")
    with pool:
        if scenario.rate is None:
            found = setting.stored_rate or saturate_aloud(scenario, pool, seeds=chosen).rate
            scenario = scenario.at_rate(found)
        with run_progress("checking") as tell:
            evaluation = evaluate(
                scenario, labels, chosen, out=out, records="none", workers=pool, on_run=tell, say=say
            )
    check = check_of(evaluation)
    path = write_table(check, evaluation.folder.path / TABLE)
    _show(check, path)
    if not check.holds:
        raise typer.Exit(1)


def _show(check: ScenarioCheck, path: Path) -> None:
    from .table import NARROWEST, scenario_table, table_console, what_counts

    console = table_console()
    console.print(check.evaluation.title, soft_wrap=True)
    console.print()
    console.print(scenario_table(check, console.width))
    console.print()
    console.print(what_counts(check.comparison), "Points: hundredths of goodput.", width=NARROWEST)
    console.print()
    for criterion in check.criteria:
        console.print(f"{'PASS' if criterion.holds else 'FAIL'}  {criterion.text}", soft_wrap=True)
    console.print(str(path), soft_wrap=True)
