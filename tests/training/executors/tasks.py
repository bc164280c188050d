"""Functions that tests give to executors; a worker imports them by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def own_pid(_: int) -> int:
    """Of the process that runs it."""
    return os.getpid()


def killed_once(task: tuple[Path, int]) -> int:
    """The number; the third one kills its process, the first time that it is asked."""
    mark, number = task
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Unlucky(Exception):
    """An error that cannot be pickled and read again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def unlucky(_: int) -> None:
    """Fails so."""
    raise Unlucky("bad", "luck")


def node_of(task: tuple[Path, int]) -> tuple[int, str, bytes]:
    """The number, the Ray node that did it, and as much as lies on that node until it is fetched.

    All but the first wait until there is a file `go`. Notes that it has begun, and that it has all but ended.
    """
    import ray

    folder, number = task
    node = ray.get_runtime_context().get_node_id()
    (folder / f"{number}-{node}-{os.getpid()}").touch()
    while number and not (folder / "go").exists():
        time.sleep(0.02)
    result = number, node, bytes(1_000_000)
    (folder / f"{number}-{node}-done").touch()
    return result
