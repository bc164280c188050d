"""`disaggroute experiment suite`: what it runs and shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..executors.executor import Executor
    from .board import Board


def run_and_show(
    *,
    policies: Sequence[str],
    scenarios: str | None,
    seeds: int | None,
    duration: float | None,
    data: Path | None,
    out: Path | None,
    workers: Executor,
    claim: bool,
    claim_log: Path | None,
    update_best: bool,
    best_known: Path | None,
    docs: Path | None,
    figures: bool,
) -> None:
    """Runs the suite and shows it.

    Args:
        policies: names of the roster or texts of policies; none: all of the roster.
        scenarios: names or files, separated by commas; None: all.
        seeds: at most so many of each scenario; None: all of its own.
        duration: window of each scenario that is no recorded trace, s; None: its own.
        data: folder of trace files.
        out: results folder; None: a default one.
        workers: does the runs.
        claim: whether held-out seeds are used.
        claim_log: where that is noted.
        update_best: whether to write what is best known.
        best_known: file of that; None: the one that ships.
        docs: folder of the documentation, whose page is to be written; None: none.
        figures: whether to draw pictures and to write the page.

    Raises:
        ValueError: bad input.
        OSError: a folder cannot be written.
    """
    from ..held_out import DEFAULT_LOG
    from ..progress import run_progress
    from ..scenario_options import say
    from . import best_known as best
    from . import config, roster
    from .board import best_of
    from .markdown import check_docs, write_docs
    from .plan import Wish, plan_suite
    from .run import run_suite
    from .writing import write_board

    if claim_log is not None and not claim:
        raise ValueError(f"claim_log is {claim_log}, but without --claim nothing is logged; give both or neither")
    if docs is not None:
        check_docs(docs)
    wish = Wish(seeds=seeds, duration_s=duration, claim=claim, data=data)
    lineup = roster.load()
    names = lineup.scenarios if scenarios is None else [name.strip() for name in scenarios.split(",") if name.strip()]
    chosen = config.load_all(names)
    known = best.read(best_known)
    if update_best:
        if not wish.usual(chosen) or claim:
            raise ValueError(
                "update_best rests on the validation seeds and windows of the scenarios; leave --seeds, --duration and "
                "--claim out"
            )
        # Entries of changed scenarios are about to be replaced.
        known = known.without({s.name for s in chosen if not known.knows(s.name, s.version, s.content)})
    plan = plan_suite(lineup, chosen, known, policies=policies, wish=wish)
    for sentence in plan.missing.values():
        say(sentence)
    folder = plan.folder if out is None else out
    again = command(
        policies=policies,
        scenarios=scenarios,
        seeds=seeds,
        duration=duration,
        claim=claim,
        update_best=update_best,
    )
    try:
        with workers, run_progress("evaluating") as tell:

            def scored(known: best.BestKnown) -> Board:
                part = plan_suite(lineup, chosen, known, policies=policies, wish=wish)
                return run_suite(
                    part,
                    out=folder,
                    command=again,
                    workers=workers,
                    log=claim_log or DEFAULT_LOG,
                    on_run=tell,
                    say=say,
                )

            board = scored(known)
            if update_best:
                known = best.read(best_known).updated({result.name: best_of(result, again) for result in board.results})
                say(f"best known: {best.write(known, best_known)}")
                board = scored(known)  # All of it is stored.
    except KeyboardInterrupt:
        say("disaggroute: interrupted; the same command goes on from the finished runs")
        raise typer.Exit(1) from None
    written: list[Path] = []
    try:
        _show(board)
    finally:  # Whether or not somebody reads to the end.
        written = write_board(board, folder, figures=figures)
        if docs is not None:
            written += write_docs(board, docs)
    for path in written:
        typer.echo(path)


def command(
    *,
    policies: Sequence[str],
    scenarios: str | None,
    seeds: int | None,
    duration: float | None,
    claim: bool,
    update_best: bool,
) -> str:
    """The command line that makes a run again; the folder of traces stands in an environment variable."""
    words = ["disaggroute", "experiment", "suite"]
    for policy in policies:
        words += ["--policy", policy]
    for name, value in (("scenarios", scenarios), ("seeds", seeds), ("duration", duration)):
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    words += [f"--{name}" for name, given in (("claim", claim), ("update-best", update_best)) if given]
    return shlex.join(words)


def _show(board: Board) -> None:
    from ..report.terminal import rich_table
    from ..table import NARROWEST, table_console
    from .tables import leaderboard_table

    console = table_console()
    table = leaderboard_table(board)
    console.print(table.title, soft_wrap=True)
    console.print(rich_table(table, console.width, left_out=("mean", "scenarios", "95 %", "worst scenario", "guards")))
    console.print(table.note, width=NARROWEST)
    console.print()
