"""`disaggroute evaluate --matrix`: what it runs and shows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..executors.executor import Executor
    from .cells import Matrix


def evaluate_matrix(
    file: str,
    *,
    conditions: str | None,
    policies: str | None,
    seeds: int | None,
    first_seed: int | None,
    duration: float | None,
    data: Path | None,
    out: Path | None,
    workers: Executor,
    claim: bool,
    claim_log: Path | None,
    figures: bool,
) -> None:
    """Runs a matrix and shows it.

    Args:
        file: name or YAML file of the matrix.
        conditions: names of those to be run, separated by commas; None: all.
        policies: to be compared with the reference, separated by commas; None: the file's.
        seeds: traces of each condition; None: the file's.
        first_seed: likewise.
        duration: window of each condition that is no recorded trace, s; None: the file's.
        data: folder of trace files.
        out: results folder; None: a default one.
        workers: does the runs.
        claim: whether held-out seeds are used.
        claim_log: where that is noted.
        figures: whether to draw the heat map and to write the page.

    Raises:
        ValueError: bad input.
        OSError: the folder cannot be written.
    """
    from ..evaluation import split_policies
    from ..held_out import DEFAULT_LOG
    from ..progress import run_progress
    from ..scenario_options import say
    from .config import load
    from .plan import plan_of
    from .run import run_matrix
    from .writing import write_matrix

    config, known = load(file)
    plan = plan_of(
        config,
        known,
        only=None if conditions is None else [name.strip() for name in conditions.split(",")],
        others=None if policies is None else split_policies(policies),
        seeds=seeds,
        first_seed=first_seed,
        duration_s=duration,
        claim=claim,
        data=data,
    )
    for sentence in plan.skipped:
        say(sentence)
    folder = plan.folder if out is None else out
    again = _command(
        file,
        conditions=conditions,
        policies=policies,
        seeds=seeds,
        first_seed=first_seed,
        duration=duration,
        data=data,
        claim=claim,
    )
    try:
        with workers, run_progress("evaluating") as tell:
            matrix = run_matrix(
                plan,
                out=folder,
                command=again,
                workers=workers,
                log=claim_log or DEFAULT_LOG,
                on_run=tell,
                say=say,
            )
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the finished runs")
        raise typer.Exit(1) from None
    written: list[Path] = []
    try:
        _show(matrix)
    finally:  # Whether or not somebody reads to the end.
        written = write_matrix(matrix, folder, figures=figures)
    for path in written:
        typer.echo(path)


def _show(matrix: Matrix) -> None:
    from ..report.terminal import rich_table, table_width
    from ..table import NARROWEST, table_console
    from .tables import points_table, worst_table

    console = table_console()
    console.print(matrix.title, soft_wrap=True)
    table = points_table(matrix)
    if table_width(table) > console.width:
        table = points_table(matrix, short=True)
    for shown in (table, *((worst_table(matrix),) if len(matrix.labels) > 1 else ())):
        console.print()
        console.print(shown.title, soft_wrap=True)
        console.print(rich_table(shown, console.width))
        console.print(shown.note, width=NARROWEST)
    console.print()


def _command(file: str, **options: Any) -> str:
    words = ["disaggroute", "evaluate", "--matrix", file]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", number]
    return shlex.join(words)
