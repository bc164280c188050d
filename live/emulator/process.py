"""An emulated engine as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable

from ..event_loop import new_event_loop
from .emulated_engine import EmulatedEngine
from .options import EngineOptions

GRACE_S = 1.0
"""Wall seconds that running requests have after SIGTERM."""

CRASHED = 1
"""Exit code after a crash."""


def die_with_parent() -> None:
    """This process ends as soon as its standard input does.

    The parent holds the other end of that pipe, and however it ends, the system closes it. (The kernel's own signal,
    PR_SET_PDEATHSIG, comes already when the parent's *thread* ends.)
    """

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(CRASHED)

    threading.Thread(target=wait, daemon=True, name="parent").start()


def run(options: EngineOptions, ready: Callable[[EmulatedEngine], None]) -> None:
    """Runs an engine until SIGTERM or SIGINT; a crash ends the process at once.

    Args:
        options: what it is.
        ready: called once it listens.

    Raises:
        ValueError: an unknown profile, or a value out of range.
        OSError: a port is taken.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(options, ready))


async def _serve(options: EngineOptions, ready: Callable[[EmulatedEngine], None]) -> None:
    engine = EmulatedEngine(options, crashed=_die)
    await engine.start()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    ready(engine)
    await ended.wait()
    await engine.stop(GRACE_S)


def _die(reason: str) -> None:
    sys.stderr.write(f"the emulated engine died: {reason}\n")
    sys.stderr.flush()
    os._exit(CRASHED)
