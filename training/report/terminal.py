"""Tables of the page on a terminal: without the columns for which it has no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from .tables import Table


def rich_table(table: Table, width: int, left_out: Sequence[str] = ()) -> RichTable:
    """A table for a terminal.

    Args:
        table: the table.
        width: columns of the terminal.
        left_out: columns that it goes without where there is no room, one after the other; the page has them all.
    """
    kept = list(range(len(table.columns)))
    if _width(table, kept) > width:
        kept = [k for k in kept if any(cells[k] != "–" for _, cells in table.rows)] or kept
    for name in left_out:
        if _width(table, kept) > width:
            kept = [k for k in kept if table.columns[k] != name]
    return _made(table, kept)


def table_width(table: Table) -> int:
    """Columns that a table needs."""
    return _width(table, list(range(len(table.columns))))


def _width(table: Table, kept: Sequence[int]) -> int:
    first = max((len(label) for label, _ in table.rows), default=0)
    return first + sum(2 + max(len(table.columns[k]), *(len(cells[k]) for _, cells in table.rows)) for k in kept)


def _made(table: Table, kept: Sequence[int]) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    shown.add_column(table.first, overflow="fold")
    for k in kept:
        shown.add_column(table.columns[k], justify="right", no_wrap=True)
    for label, cells in table.rows:
        shown.add_row(label, *(cells[k] for k in kept))
    return shown
