"""`disaggroute trace`: look at trace files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .formats import NAMES

app = typer.Typer(help="Look at trace files.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at trace files."""


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="Trace file, plain or .gz.")],
    format: Annotated[
        str | None, typer.Option("--format", help=f"One of {', '.join(NAMES)}; found out unless given.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .pdf or .svg.")] = None,
    profile: Annotated[
        str, typer.Option(help="Profile whose limits and targets the requests are held against.")
    ] = "a40-qwen2.5-3b",
    targets: Annotated[
        str | None, typer.Option(help="fixed or relative; the file's own, else fixed, unless given.")
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort rows that are out of order.")] = False,
    seed: Annotated[int, typer.Option(help="For spreading quantised arrivals, and SLO classes.")] = 0,
) -> None:
    """Print format, rows, rate, burstiness and length quantiles of FILE, and draw them.

    Also prints how many of its requests fit the profile, and how many miss their targets even alone.
    """
    from rich.console import Console

    from .drawing import draw
    from .inspection import tables
    from .reader import read

    console = Console(markup=False, emoji=False)
    found = read(file, format, sort=sort)
    _, preparation = found.prepare(profile, target_kind=targets, seed=seed)  # type: ignore[arg-type]
    for table in tables(found, seed):
        console.print(table)
    console.print(f"against {profile}: {preparation}", highlight=False, soft_wrap=True)
    if plot is not None:
        arrival = found.spread_arrivals(seed=seed)
        console.print(f"drawn: {draw(plot, str(file), arrival, found.prompt, found.output)}", soft_wrap=True)
