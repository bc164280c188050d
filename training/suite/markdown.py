"""The leaderboard as a page of the documentation: `docs/leaderboard.md`, with its pictures and tables."""

from __future__ import annotations

from pathlib import Path

from ..csv_file import csv_bytes
from ..report.tables import Table
from ..runs import write_atomically
from .board import Board
from .tables import (
    beside_table,
    guard_table,
    leaderboard_rows,
    leaderboard_table,
    scale_table,
    scenario_table,
    score_table,
    suite_rows,
)
from .writing import PICTURES, pictures_of

PAGE = "leaderboard.md"

PREFIX = "suite-"
"""Of the files beside those of other pages."""

HEAD = """\
# Leaderboard

{policies} policies in {scenarios} scenarios of the [suite](suite.md), on {seeds} seeds{mark}. This page is written by

```sh
{command}
```

with `--docs docs`, and nothing on it is written by hand ([scores by scenario](data/{prefix}scores.csv),
[over all](data/{prefix}leaderboard.csv)).
"""


def write_docs(board: Board, folder: Path) -> list[Path]:
    """Writes the page, its pictures in `img/` and its tables in `data/`.

    Args:
        board: the numbers.
        folder: of the documentation.

    Returns:
        The files.

    Raises:
        ValueError: there is no such folder.
        OSError: a file cannot be written.
    """
    check_docs(folder)
    files = {f"img/{PREFIX}{name}": content for name, content in pictures_of(board).items()}
    files[f"data/{PREFIX}scores.csv"] = csv_bytes(suite_rows(board))
    files[f"data/{PREFIX}leaderboard.csv"] = csv_bytes(leaderboard_rows(board))
    files[PAGE] = markdown(board).encode()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def check_docs(folder: Path) -> None:
    """Refuses a folder that is none.

    Raises:
        ValueError: there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"docs is {folder}; it must be the folder of the documentation")


def markdown(board: Board) -> str:
    """The page."""
    head = HEAD.format(
        policies=len(board.overalls),
        scenarios=len(board.results),
        seeds="held-out" if board.plan.wish.claim else "validation",
        mark=f" ({board.mark})" if board.mark else "",
        command=board.command,
        prefix=PREFIX,
    )
    parts = [head]
    for name, table in zip(PICTURES, (leaderboard_table(board), score_table(board), None), strict=True):
        kind = PICTURES[name]
        parts.append(f"## {kind.title}\n\n![{kind.title}](img/{PREFIX}{name})\n\n{kind.reading}\n")
        if table is not None:
            parts.append(_table(table))
    for more in (guard_table(board), scale_table(board), beside_table(board), scenario_table(board)):
        if more is not None:
            parts.append(f"## {more.title}\n\n{_table(more)}")
    return "\n".join(parts)


def _table(table: Table) -> str:
    lines = [_row((table.first, *table.columns)), _row(["---"] * (len(table.columns) + 1))]
    lines += [_row((label, *cells)) for label, cells in table.rows]
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
