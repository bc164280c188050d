"""`disaggroute returns`: what the baselines earn in the registered environments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .executors import PROCESS
from .scenario_options import ExecutorName, RayAddress, WorkerCount

if TYPE_CHECKING:
    from rich.table import Table

    from .reference_returns import ReferenceReturns


def register(app: typer.Typer) -> None:
    """Adds the command of this module to an app."""
    app.command()(returns)


def returns(
    configs: Annotated[
        str, typer.Option(help="Environments (`disaggroute list environments`), separated by commas. Default: all.")
    ] = "",
    policies: Annotated[
        str, typer.Option(help="Policies, separated by commas; parameters in brackets. Default: the baselines.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Episodes per policy.")] = 20,
    first_seed: Annotated[int, typer.Option(help="Seed of the first; held-out ones are refused.")] = 10_000,
    again: Annotated[bool, typer.Option("--again", help="Play also what the file holds.")] = False,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
    out: Annotated[
        Path | None, typer.Option(help="The file. Default: the one that ships, configs/experiments/returns-v0.yaml.")
    ] = None,
) -> None:
    """Play policies in the registered environments and store their returns.

    What the file holds is not played again, so an interrupted command goes on where it was.

    \b
    disaggroute returns
    disaggroute returns --configs chat --policies "marginal-cost(w_q=0.1)" --out mine.yaml
    """  # noqa: D301
    from rich.console import Console

    from ..envs import environment_config
    from .compilation import compile_all
    from .evaluation import split_policies
    from .executors.choice import make_executor
    from .progress import run_progress
    from .reference_returns import BASELINES, FILE, update

    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    chosen = split_policies(configs) or list(environment_config.names())
    path = FILE if out is None else out
    compile_all(lambda text: typer.echo(text, err=True), interactive=True)
    try:
        with pool, run_progress("playing") as tell:
            found = update(
                path,
                chosen,
                split_policies(policies) or BASELINES,
                first_seed=first_seed,
                seeds=seeds,
                again=again,
                workers=pool,
                on_task=tell,
            )
    except KeyboardInterrupt:
        typer.echo("disaggroute: interrupted; the same command goes on from what is stored", err=True)
        raise typer.Exit(1) from None
    console = Console()
    for name in chosen:
        console.print(return_table(name, found))
    typer.echo(str(path))


def return_table(config: str, found: ReferenceReturns) -> Table:
    """Mean return and goodput of every policy in one configuration."""
    from rich.table import Table

    last = found.first_seed + found.seeds - 1
    table = Table(title=f"{config}, seeds {found.first_seed} to {last}", title_justify="left")
    table.add_column("policy")
    table.add_column("mean return", justify="right")
    table.add_column("goodput", justify="right")
    for policy, earned in found.configurations[config].items():
        table.add_row(policy, f"{earned.mean_return:.1f}", f"{earned.mean_goodput:.4f}")
    return table
