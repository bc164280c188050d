"""`disaggroute live compare`: a live evaluation against the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group

    from .report.tables import Table
    from .truth.truth import Truth


def register(app: typer.Typer) -> None:
    """Adds the command of this module to an app."""
    app.command()(compare)


def compare(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Results folder of an evaluation on a live cluster.", show_default=False),
    ],
    profile: Annotated[
        str | None,
        typer.Option(help="Profile of the engines, as calibrated: a name or a YAML file. Default: the router's own."),
    ] = None,
    repeat: Annotated[
        Path | None,
        typer.Option(help="Results folder of a second evaluation of the same policies and seeds: shows the noise."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables, figures and page. Default: RUN/truth, with a key if options are given."),
    ] = None,
) -> None:
    """Replay a live evaluation in the simulator and show how far the two lie apart.

    Every run is simulated with its recorded routing, instants and lengths. Tables and figures show the errors of TTFT,
    TPOT, E2E and goodput, whether the policies rank the same, what the errors depend on, and, with --repeat, how far
    two measurements of the same lie apart.

    What the client's way adds (proxy, HTTP) is measured on requests that had an instance to themselves; everything is
    told with it and without.

    \b
    disaggroute live compare results/study
    disaggroute live compare results/study --profile calibrated.yaml --repeat results/study-again
    """  # noqa: D301
    from .truth.truth import compare_with_simulator
    from .truth.writing import check_folder, folder_of, write_truth

    truth = compare_with_simulator(run, profile=profile, repeat=repeat)
    folder = out if out is not None else folder_of(truth)
    check_folder(truth, folder)
    written: list[Path] = []
    try:
        _show(truth)
    finally:  # Whether or not somebody reads to the end, as in `disaggroute live compare run | head`.
        written = write_truth(truth, folder, command(run, profile, repeat, out))
    for path in written:
        typer.echo(path)


def command(run: Path, profile: str | None, repeat: Path | None, out: Path | None) -> str:
    """The command line that makes a comparison again."""
    import shlex

    words = ["disaggroute", "live", "compare", str(run)]
    for option, value in (("--profile", profile), ("--repeat", repeat), ("--out", out)):
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def _show(truth: Truth) -> None:
    from .table import NARROWEST, table_console
    from .truth.page import remarks
    from .truth.tables import error_table, goodput_table, noise_table, ranking_table, residual_table

    console = table_console()
    console.print(truth.results.title, soft_wrap=True)
    console.print(f"profile {truth.profile}", soft_wrap=True)
    tables = [error_table(truth), *([noise_table(truth, truth.noise)] if truth.noise else [])]
    tables += [goodput_table(truth), *([ranking_table(truth)] if len(truth.labels) > 1 else []), residual_table(truth)]
    for table in tables:
        console.print()
        console.print(table.title)
        console.print(rich_table(table, console.width))
        console.print(table.note, width=NARROWEST)
    console.print()
    for remark in (f"Overhead: {truth.overhead.text()}", *remarks(truth)):
        console.print(remark, width=NARROWEST)


FIRST_LEFT_OUT = (
    *("shortened", "left out", "retried", "whole window", "P50", "P90", "P99"),
    *("without overhead", "requests"),
)
"""Columns that a narrow terminal goes without, one after the other; the page has them all."""


def rich_table(table: Table, width: int) -> Group:
    """A table for the terminal, without the columns for which it has no room."""
    from .report.terminal import rich_table as made

    return made(table, width, FIRST_LEFT_OUT)
