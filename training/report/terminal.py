"""Tables of the page on a terminal, as narrow as it may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

    from .tables import Table

LABEL = 24
"""Characters of the first column that always have room; longer labels are wrapped where need be."""

HEADING = 12
"""Characters of a line of a heading that is wrapped, unless its cells or a single word are longer."""


def rich_table(table: Table, width: int, left_out: Sequence[str] = ()) -> Group:
    """A table for a terminal. Columns for which it has no room follow below, beside the first column again.

    Args:
        table: the table.
        width: columns of the terminal.
        left_out: columns that it goes without where there is no room, one after the other; the page has them all.
    """
    from rich.console import Group

    headings, kept = list(table.columns), list(range(len(table.columns)))
    if _width(table, kept, headings) > width:
        kept = [k for k in kept if any(cells[k] != "–" for _, cells in table.rows)] or kept
    for name in left_out:
        if _width(table, kept, headings) > width:
            kept = [k for k in kept if table.columns[k] != name]
    if _width(table, kept, headings, LABEL) > width:
        headings = [_wrapped(table, k) for k in range(len(table.columns))]
    parts: list[list[int]] = [[]]
    for k in kept:
        if parts[-1] and _width(table, [*parts[-1], k], headings, LABEL) > width:
            parts.append([])
        parts[-1].append(k)
    first, *more = (_made(table, part, headings) for part in parts)
    return Group(first, *(each for part in more for each in ("", part)))


def table_width(table: Table) -> int:
    """Columns that a table needs."""
    return _width(table, range(len(table.columns)), table.columns)


def _width(table: Table, kept: Sequence[int], headings: Sequence[str], label: int | None = None) -> int:
    """Columns that some columns need, beside labels of at most this length."""
    first = max((len(text) for text, _ in table.rows), default=0)
    longest = first if label is None else min(first, label)
    return longest + sum(2 + max(map(len, (*headings[k].split("\n"), *_cells(table, k)))) for k in kept)


def _cells(table: Table, k: int) -> list[str]:
    return [cells[k] for _, cells in table.rows]


def _wrapped(table: Table, k: int) -> str:
    """A heading on lines about as long as its cells; it is broken at spaces, and before @ and brackets."""
    room = max(HEADING, *map(len, _cells(table, k)))
    lines = [""]
    for word in re.findall(r"\s*[@(]?[^\s@(]+|\s*[@(]", table.columns[k]):
        if lines[-1] and len(lines[-1] + word) > room:
            lines.append("")
        lines[-1] += word if lines[-1] else word.lstrip()
    return "\n".join(lines)


def _made(table: Table, kept: Sequence[int], headings: Sequence[str]) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    shown.add_column(table.first, overflow="fold")
    for k in kept:
        shown.add_column(headings[k], justify="right", no_wrap=True)
    for label, cells in table.rows:
        shown.add_row(label, *(cells[k] for k in kept))
    return shown
