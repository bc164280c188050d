"""A progress bar on the standard error, with the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .evaluation import OnRun


@contextmanager
def run_progress(description: str) -> Iterator[OnRun]:
    """A bar that counts runs; yields what to tell it after each (runs done, runs in all)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(description, total=None)

        def tell(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        yield tell
