"""`disaggroute experiment suite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..executors import PROCESS
from ..scenario_options import ExecutorName, RayAddress, WorkerCount


def register(app: typer.Typer) -> None:
    """Adds the command of this package to an app."""
    app.command()(suite)


def suite(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="Policy to score, as often as wanted: a name of the leaderboard, any policy text, or "
            "package.module:Class. Default: all of the leaderboard.",
            show_default=False,
        ),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(help="Scenarios (`disaggroute list suite`) or YAML files, separated by commas. Default: all."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Only so many of each scenario's seeds. Default: all that it has.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Other window of all but recorded traces, s. Default: the scenario's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of trace files. Default: $DISAGGROUTE_DATA.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/suite-KEY.")] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Use held-out seeds for a claim; adds a line per scenario to the log.")
    ] = False,
    claim_log: Annotated[
        Path | None,
        typer.Option(
            help="The log of held-out evaluations, to be committed. Default: configs/experiments/held-out.log."
        ),
    ] = None,
    update_best: Annotated[
        bool, typer.Option("--update-best", help="Write the best of this run as best known where it is better.")
    ] = False,
    best_known: Annotated[
        Path | None,
        typer.Option(
            help="File of what is best known. Default: configs/suite/best-known.yaml of the package.",
            show_default=False,
        ),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(help="Folder of the documentation in which to write leaderboard.md and what it shows."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Whether to draw pictures and write suite.html.")
    ] = True,
) -> None:
    """Score policies in all scenarios of the suite (docs/suite.md).

    A score of 0 is round robin, a score of 1 the best policy known in the scenario.

    Results go to a folder: leaderboard.csv, suite.csv, pictures, suite.html, and a folder for each scenario.

    What is stored is not run again, so an interrupted run goes on with the same command.

    \b
    disaggroute experiment suite --data traces
    disaggroute experiment suite --policy my_module:MyPolicy
    disaggroute experiment suite --policy "network@mine.yaml" --scenarios mixed-bursty,failures --seeds 5
    """  # noqa: D301
    from ..executors.choice import make_executor
    from .command import run_and_show

    run_and_show(
        policies=policy or [],
        scenarios=scenarios,
        seeds=seeds,
        duration=duration,
        data=data,
        out=out,
        workers=make_executor(executor, workers=workers, ray_address=ray_address),
        claim=claim,
        claim_log=claim_log,
        update_best=update_best,
        best_known=best_known,
        docs=docs,
        figures=figures,
    )
