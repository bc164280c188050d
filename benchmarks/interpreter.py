"""Programs that run in a fresh interpreter, so that nothing is loaded or cached beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
import time

PACKAGE = (__package__ or "").rpartition(".")[0]
"""Name under which this package was imported."""


def output_of(program: str, *arguments: str, **environment: str) -> str:
    """Standard output of a Python program in a new process.

    Args:
        program: its text.
        *arguments: its `sys.argv[1:]`.
        **environment: variables that it gets beside our own.

    Raises:
        RuntimeError: it failed; the message has its last line.
    """
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"a fresh interpreter failed: {last}")
    return done.stdout


def seconds_to_end(program: str, **environment: str) -> float:
    """Seconds from starting a new process until the program's last line is done.

    The clock is the system's monotonic one, which all processes share.

    Raises:
        RuntimeError: the program failed.
    """
    started = time.monotonic_ns()
    stamp = output_of(f"{program}\nimport time\nprint(time.monotonic_ns())", **environment)
    return (int(stamp.split()[-1]) - started) / 1e9
