"""How the engines of a cluster stand, as a table for the terminal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .standing import EngineStanding, Standing

if TYPE_CHECKING:
    from rich.table import Table

WIDE = ("engine", "role", "pid", "alive", "healthy", "url", "version", "since", "log")

FOLDED = (("engine", "role"), ("alive",), ("healthy",), ("url", "log"), ("pid", "version"), ("since", "at"))
"""What stands below what where a line is too short for all."""

LONG = ("engine", "url")
"""What goes on in the next line where there is still no room."""


def show(found: Standing) -> None:
    """Prints the table on the standard output: a line per engine, or two where the screen is too narrow for one."""
    from rich.console import Console

    console = Console(highlight=False)
    wide = _table(found, tuple((name,) for name in WIDE))
    needed = Console(width=10_000).measure(wide).maximum
    if not console.is_terminal and "COLUMNS" not in os.environ:  # Nobody looks: a line is a line.
        console.width = max(console.width, needed)
    console.print(wide if needed <= console.width else _table(found, FOLDED))


def _table(found: Standing, columns: tuple[tuple[str, ...], ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    folded = any(len(names) > 1 for names in columns)
    table = Table(box=SIMPLE_HEAD, collapse_padding=folded, title=Text(found.name), title_justify="left")
    for names in columns:
        heading = "\n".join(name for name in names if name in WIDE)
        table.add_column(heading, no_wrap=not folded or names[0] not in LONG, overflow="fold")
    for engine in found.engines:
        cells = _cells(engine, folded)
        # Text, since a name may look like markup.
        table.add_row(*(Text("\n".join(cells[name] for name in names)) for names in columns))
    return table


def _cells(engine: EngineStanding, folded: bool) -> dict[str, str]:
    since = time.localtime(engine.since) if engine.since else None
    day, at = (time.strftime(form, since) if since else "" for form in ("%Y-%m-%d", "%H:%M:%S"))
    return {
        "engine": engine.name,
        "role": engine.role,
        "pid": str(engine.pid or ""),
        "alive": ("yes" if engine.pid else "no") if engine.here else "",
        "healthy": "yes" if engine.healthy else "no",
        "url": engine.url,
        "version": engine.version,
        "since": day if folded else f"{day} {at}".strip(),
        "at": at,
        "log": engine.log,
    }
