"""`disaggroute compare-routers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .executors import PROCESS
from .scenario_options import (
    ClusterFile,
    Dealing,
    ExecutorName,
    PredictorName,
    ProfileName,
    Rate,
    RayAddress,
    Targets,
    Topology,
    Warmup,
    WorkerCount,
    Workload,
    say,
    scenario_of,
    with_rate,
)

POLICIES = (
    "round-robin,least-loaded,power-of-two,length-threshold,size-interval,marginal-cost,marginal-cost(sample=2),"
    "least-ttft,min-tpot"
)


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(compare_routers)


def compare_routers(
    workload: Workload = "mixed-bursty-a40",
    policies: Annotated[str, typer.Option(help="Policies, separated by commas; parameters in brackets.")] = POLICIES,
    counts: Annotated[str, typer.Option(help="Numbers of routers, 1 to 8, separated by commas.")] = "1,2,4,8",
    dealing: Dealing = None,
    topology: Topology = None,
    cluster: ClusterFile = None,
    profile: ProfileName = None,
    rate: Rate = None,
    seeds: Annotated[int, typer.Option(help="Traces per policy and number of routers.")] = 20,
    first_seed: Annotated[int, typer.Option(help="First seed; held-out ones are refused.")] = 10_000,
    duration: Annotated[float, typer.Option(help="Length of the measurement window, simulated seconds.")] = 600.0,
    warmup: Warmup = 60.0,
    predictor: PredictorName = "bucket",
    targets: Targets = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: results/routers-WORKLOAD-CLUSTER-KEY.")
    ] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
) -> None:
    """Compare policies behind one and several routers, on the same traces at the same rate.

    Each router knows only what it sent itself; all see the same polls. The rate is that of one router.

    Prints goodput behind the fewest routers and the change with more of them; routers.csv and routers.png in the
    results folder show the same.

    What is stored is not run again, so an interrupted comparison goes on with the same command.

    \b
    disaggroute compare-routers
    disaggroute compare-routers mixed-bursty --counts 1,2,4 --dealing random --policies "least-loaded,marginal-cost"
    """  # noqa: D301
    from .evaluation import check_evaluation, split_policies
    from .executors.choice import make_executor
    from .progress import run_progress
    from .router_picture import draw_study
    from .router_study import folder_of, read_counts, study, with_routers, write_study
    from .seeds import seeds_from
    from .table import NARROWEST, router_table, table_console

    scenario = scenario_of(
        workload=workload,
        topology=topology,
        cluster=cluster,
        profile=profile,
        dealing=dealing,
        rate=rate,
        duration_s=duration,
        warmup_s=warmup,
        predictor=predictor,
        targets=targets,
    )
    numbers = read_counts(counts)
    with_routers(scenario, numbers)  # Before a rate is searched for.
    chosen = seeds_from(first_seed, seeds)
    labels = check_evaluation(scenario, split_policies(policies), chosen, records="none")
    with make_executor(executor, workers=workers, ray_address=ray_address) as pool:
        scenarios = with_routers(with_rate(scenario, pool), numbers)
        folder = folder_of(scenarios) if out is None else out
        with run_progress("comparing") as tell:
            found = study(scenarios, labels, chosen, out=folder, workers=pool, on_run=tell, say=say)
    table, picture = write_study(found, folder / "routers.csv"), draw_study(found, folder / "routers.png")
    console = table_console()
    console.print(found.title, soft_wrap=True)
    console.print()
    console.print(router_table(found, console.width))
    console.print()
    intervals = "with 95 % intervals" if found.has_intervals else "without intervals, which need at least 4 seeds"
    console.print(f"Change: hundredths of goodput, paired by trace, {intervals}.", width=NARROWEST)
    console.print(f"{table}\n{picture}", soft_wrap=True)
