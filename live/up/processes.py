"""Processes as the kernel knows them: which are an engine's, and signals that never meet a stranger.

A process id may be given to another process once its own has ended. So a process is known by its id and by when it
started. Besides, all processes of an engine carry a mark in their environment, by which they are found when nobody has
written down their ids.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "DISAGGROUTE_LAUNCHED"
"""Variable in the environment of every process of an engine: its launch and its name."""

TITLES = "SPT_NOENV"
"""Variable that keeps the library `setproctitle`, by which vLLM names its processes, from writing over the mark."""

DOWN_S = 15.0
"""For which engines may take to end by themselves."""

FOLLOW_S = 5.0
"""For which an engine's other processes may take to end after the first."""

PROC = Path("/proc")

ENDED = "ZX"
"""States of a process whose first thread has ended, whether or not anybody has taken note."""


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        started: when, in ticks of the kernel's clock since the machine's start.
        session: id of the process that began its session.
        state: the kernel's letter for its first thread.
        threads: how many it has; while there are others than the first, its ports and memory are taken.
    """

    pid: int
    started: int
    session: int
    state: str
    threads: int = 1

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in ENDED and self.threads <= 1

    @property
    def since(self) -> float:
        """When it started, as a Unix time, s."""
        line = next(line for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime "))
        return float(line.split()[1]) + self.started / os.sysconf("SC_CLK_TCK")

    def runs(self) -> bool:
        """Whether it has not ended."""
        now = look(self.pid)
        return now is not None and now.started == self.started and not now.ended

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal, and nobody else, whoever has its id by now."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.runs():  # Seen after the handle was made, so the handle is its.
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def parse(stat: str) -> Process | None:
    """The process of a line of /proc/PID/stat; None where it is no such line."""
    # The name in brackets may hold spaces and brackets itself.
    head, _, tail = stat.rpartition(")")
    try:
        fields = tail.split()
        return Process(int(head.split()[0]), int(fields[19]), int(fields[3]), fields[0], int(fields[17]))
    except (ValueError, IndexError):
        return None


def look(pid: int) -> Process | None:
    """The process of an id; None if there is none."""
    try:
        return parse((PROC / str(pid) / "stat").read_text(errors="replace"))  # A name may be any bytes.
    except OSError:
        return None


def every() -> list[Process]:
    """All processes that have not ended."""
    found = (look(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return [process for process in found if process is not None and not process.ended]


def marks(process: Process) -> str | None:
    """What the mark of a process says; None if it has none, or is another user's."""
    try:
        environment = (PROC / str(process.pid) / "environ").read_bytes()
    except OSError:
        return None
    start = f"{MARK}=".encode()
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(start)), None)
    return None if found is None else found[len(start) :].decode(errors="replace")


def words(process: Process) -> list[str]:
    """The command of a process; nothing if it has ended, or is another user's."""
    try:
        content = (PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return content.decode(errors="replace").split("\0")


def end(find: Callable[[], list[Process]], first: Callable[[], list[Process]], limit_s: float) -> None:
    """Ends processes: asks the first ones, lets the others follow, kills what is left.

    Args:
        find: all that are to end and have not; asked again and again.
        first: those that are asked to end.
        limit_s: for the first ones to end by themselves.

    Raises:
        RuntimeError: some do not end although they were killed.
    """
    for process in first():
        process.send(signal.SIGTERM)
    if not _until_none(first, limit_s):
        for process in first():
            process.send(signal.SIGKILL)
    # With its first process the kernel kills an engine's others, but the one that cleans up after them.
    if _until_none(find, FOLLOW_S):
        return
    for _ in range(50):
        left = find()
        for process in left:
            process.send(signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)
    raise RuntimeError(f"processes {', '.join(str(each.pid) for each in find())} do not end")


def _until_none(find: Callable[[], list[Process]], limit_s: float) -> bool:
    limit = time.monotonic() + limit_s
    while find():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
