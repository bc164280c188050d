"""The board, written into its folder: two tables, pictures and a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...envs.records import SCHEMA_VERSION
from ..csv_file import csv_bytes
from ..policy_style import policy_styles
from ..report.page import Section, encoded, render
from ..runs import RESULTS_SCHEMA, write_atomically
from ..source_hash import source_hash
from .board import Board
from .picture import leaderboard_png, profile_png, profiled, score_png
from .tables import (
    beside_table,
    guard_table,
    leaderboard_rows,
    leaderboard_table,
    point_table,
    scale_table,
    scenario_table,
    score_table,
    suite_rows,
)

TABLE, LEADERBOARD, PAGE = "suite.csv", "leaderboard.csv", "suite.html"
LEADERBOARD_PICTURE, SCORE_PICTURE, PROFILE_PICTURE = "leaderboard.png", "scores.png", "profiles.png"


@dataclass(frozen=True)
class _Picture:
    """How to read one."""

    title: str
    reading: str


PICTURES = {
    LEADERBOARD_PICTURE: _Picture(
        "Which policy is best over all?",
        "A dot is the interquartile mean of a policy's scores over all scenarios and seeds, the bar its 95 % interval "
        "by stratified bootstrap; 0 is round robin and 1 the best policy known in each scenario.",
    ),
    SCORE_PICTURE: _Picture(
        "Where is it good, and where not?",
        "A row is a policy, a column a scenario: purple above round robin, orange below it.",
    ),
    PROFILE_PICTURE: _Picture(
        "How often is it how good?",
        "The share of the runs (seeds of scenarios, each scenario weighing the same) with a score above the one on the "
        "axis: the higher a line, the better; lines that cross have no simple order.",
    ),
}


def write_board(board: Board, folder: Path, *, figures: bool = True) -> list[Path]:
    """Writes everything about a run of the suite into its folder.

    Args:
        board: the numbers.
        folder: of the run.
        figures: whether to draw the pictures and to write the page.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    files = {TABLE: csv_bytes(suite_rows(board)), LEADERBOARD: csv_bytes(leaderboard_rows(board))}
    if figures:
        pictures = pictures_of(board)
        files |= pictures | {PAGE: page(board, pictures).encode()}
    for name in (*PICTURES, PAGE):  # Those of an earlier run would show other numbers.
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def pictures_of(board: Board) -> dict[str, bytes]:
    """PNG of each picture, by file name."""
    pictures = {LEADERBOARD_PICTURE: leaderboard_png(board), SCORE_PICTURE: score_png(board)}
    if profiled(board):
        pictures[PROFILE_PICTURE] = profile_png(board)
    return pictures


def page(board: Board, images: Mapping[str, bytes]) -> str:
    """The page as HTML; the same board gives the same text."""
    beside = beside_table(board)
    parts = (
        ("leaderboard", LEADERBOARD_PICTURE, (leaderboard_table(board),)),
        ("scores", SCORE_PICTURE, (score_table(board), point_table(board))),
        ("profiles", PROFILE_PICTURE, ()),
    )
    sections = [
        Section(name, PICTURES[picture].title, PICTURES[picture], encoded(images, picture), tables)
        for name, picture, tables in parts
        if picture in images
    ]
    sections += [
        Section("guards", "Guards", None, "", (guard_table(board),)),
        Section("scale", "What a score stands for", None, "", (scale_table(board), *((beside,) if beside else ()))),
        Section("scenarios", "Scenarios", None, "", (scenario_table(board),)),
    ]
    cards = {
        standing.text: result.row.evaluation.runs[standing.text][0].policy
        for result in board.results
        for standing in result.standings.values()
        if standing.text in result.row.evaluation.runs
    }
    labels = [each.label for each in board.overalls]
    plan = board.plan
    return render(
        policies=cards,
        versions={
            "disaggroute": __version__,
            "code": source_hash(),
            "results schema": str(RESULTS_SCHEMA),
            "records schema": str(SCHEMA_VERSION),
        },
        title="Suite: how good is a policy over all?",
        facts={
            "Scenarios": f"{len(board.results)} of {len(plan.scenarios)}",
            "Policies": str(len(labels)),
            "Score 0": plan.roster.zero,
            "Seeds": "held out" if plan.wish.claim else "validation",
            "Runs": f"{plan.matrix.runs:,}",
        }
        | ({"Mark": board.mark} if board.mark else {})
        | ({"Notes": plan.roster.notes} if plan.roster.notes else {}),
        command=board.command,
        sections=sections,
        styles=policy_styles([*labels, *cards]),
        remarks=[
            "Scores, their interquartile mean, stratified bootstrap intervals and performance profiles follow Agarwal, "
            "Schwarzer, Castro, Courville and Bellemare, Deep reinforcement learning at the edge of the statistical "
            "precipice, NeurIPS 2021.",
            *(f"{sentence}." for sentence in plan.missing.values()),
        ],
    )
