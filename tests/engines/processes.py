"""The processes of an engine, as the kernel knows them."""

from __future__ import annotations

import time
from pathlib import Path

LIMIT_S = 60.0


def group(leader: int) -> set[int]:
    """Processes of a group that have not ended."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name in brackets may hold spaces and brackets; state, parent and group come after it.
                state, _, number, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(number) == leader and state not in "ZX":
                found.add(int(folder.name))
    return found


def until_gone(leader: int) -> None:
    """Waits until a group has no process; fails at the limit."""
    end = time.monotonic() + LIMIT_S
    while left := group(leader):
        assert time.monotonic() < end, f"processes {left} of the engine are still there after {LIMIT_S:g} s"
        time.sleep(0.1)
