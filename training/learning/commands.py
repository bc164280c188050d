"""`disaggroute train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..executors import PROCESS
from ..scenario_options import ExecutorName, RayAddress, WorkerCount, say

if TYPE_CHECKING:
    from .choose import Choice


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command()(train)


def train(
    config: Annotated[
        str, typer.Argument(help="Training configuration: a name (`disaggroute list configs`) or a YAML file.")
    ],
    seed: Annotated[int | None, typer.Option(help="Training seed. Default: the configuration's.")] = None,
    seeds: Annotated[int, typer.Option(help="Training seeds, counted up from the first one.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: results/train-NAME-KEY.")] = None,
    device: Annotated[str | None, typer.Option(help="Where torch computes: cpu or cuda.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value of a field, such as parameters.population=32; may be given again."),
    ] = None,
    workers: WorkerCount = None,
    executor: ExecutorName = PROCESS,
    ray_address: RayAddress = None,
) -> None:
    """Train a policy as a configuration says, and write it to a file.

    Trained on tuning seeds; the choice among the candidates of all training seeds is made on validation seeds.

    Results go to a folder: trained.yaml, which `--policies POLICY@FILE` takes, card.md, validation.csv, and a folder
    for each training seed with its learning curve and checkpoints.

    Checkpoints are stored as it goes, so an interrupted training goes on with the same command.

    \b
    disaggroute train linear-es
    disaggroute train linear-es --seeds 5 --out results/linear
    disaggroute train my-network.yaml --set policy.hidden=[32] --set budget=500
    """  # noqa: D301
    from ..executors.choice import make_executor
    from ..progress import run_progress
    from ..seeds import seeds_from
    from .experiment import train as run
    from .methods import load

    given = [f"{name}={value}" for name, value in (("training_seed", seed), ("device", device)) if value is not None]
    wanted = load(config, (*(changes or ()), *given))
    pool = make_executor(executor, workers=workers, ray_address=ray_address)
    training_seeds = seeds_from(wanted.training_seed, seeds)
    words = ["disaggroute", "train", config]
    words += [] if seed is None else ["--seed", str(seed)]
    words += [] if seeds == 1 else ["--seeds", str(seeds)]
    words += [] if device is None else ["--device", device]
    words += [word for change in changes or () for word in ("--set", change)]
    try:
        with pool:
            choice = run(
                wanted, training_seeds, out=out, command=shlex.join(words), workers=pool, bar=run_progress, say=say
            )
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the last checkpoint")
        raise typer.Exit(1) from None
    _show(choice)


def _show(choice: Choice) -> None:
    from ..table import table_console

    console = table_console()
    console.print((choice.file.parent / "card.md").read_text(), soft_wrap=True, markup=False, highlight=False)
    for name in ("trained.yaml", "card.md", "validation.csv"):
        console.print(str(choice.file.parent / name), soft_wrap=True, markup=False, highlight=False)
