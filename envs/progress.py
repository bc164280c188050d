"""A progress bar on the standard error, with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[int, int], None]
"""Told how much is done, and of how much."""


@contextmanager
def run_progress(description: str, unit: str = "runs") -> Iterator[OnProgress]:
    """A bar that counts runs, drawn from the first word on.

    Args:
        description: what is going on.
        unit: what is counted, in the plural.

    Yields:
        What to tell it: runs done, runs in all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    bar = progress.add_task(description, total=None)

    def tell(done: int, total: int) -> None:
        progress.start()
        progress.update(bar, completed=done, total=total)

    try:
        yield tell
    finally:
        if progress.live.is_started:
            progress.stop()
