"""`disaggroute live gate`: hold engines to what measurements rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gate(
    cluster: Annotated[str, typer.Argument(help="Name of a live cluster, or path of its YAML file.")],
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the report. Default: live-gates/CLUSTER.json, written anew.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file of --out.")] = False,
) -> None:
    """Check that engines count tokens exactly and that KV arrives as it was sent.

    Warms up every pair of engines; exits with 1 when a gate stays shut.
    """
    import asyncio

    from rich.console import Console

    from ...envs.atomic_file import write_atomically
    from ..file_name import file_name
    from ..running import running
    from .gates import run_gates

    if out is not None and out.exists() and not force:
        raise ValueError(f"out is {out}, which exists; name another file, or say --force")
    live = running(cluster)
    report = asyncio.run(run_gates(live, tell=lambda text: typer.echo(text, err=True)))
    path = out or Path("live-gates") / f"{file_name(live.name)}.json"
    write_atomically(path, report.json_bytes())
    console = Console(markup=False, emoji=False)
    for table in report.tables():
        console.print(table)
    for problem in report.problems:
        console.print(problem, highlight=False)
    typer.echo(path)
    if not report.passed:
        raise RuntimeError(f"{live.name} does not pass: {report.problems[0]}")
