"""An emulated engine as a process of its own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable

from .emulated_engine import EmulatedEngine
from .options import EngineOptions

GRACE_S = 1.0
"""Wall seconds that running requests have after SIGTERM."""

CRASHED = 1
"""Exit code after a crash."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends (Linux, prctl(2)).

    Raises:
        OSError: the system has no such thing.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        raise OSError("a process dies with its parent on Linux only")
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "the process cannot be made to die with its parent")
    if os.getppid() != parent:  # it ended in between
        os._exit(CRASHED)


def run(options: EngineOptions, ready: Callable[[EmulatedEngine], None]) -> None:
    """Runs an engine until SIGTERM or SIGINT; a crash ends the process at once.

    Args:
        options: what it is.
        ready: called once it listens.

    Raises:
        ValueError: an unknown profile, or a value out of range.
        OSError: a port is taken.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
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


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every system
        return None
    return uvloop.new_event_loop
