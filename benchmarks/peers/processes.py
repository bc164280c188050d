"""A simulator in a process of its own, and the CPU time that the whole process took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class Task:
    """What a process is to do.

    Attributes:
        short: trace file of a few requests, which is replayed first, so that everything is loaded.
        trace: trace file.
        result: file to write the times to.
        options: keywords of Dynamo's replay.
        requests: file to write a record of each request to, if any.
    """

    short: str
    trace: str
    result: str
    options: dict[str, Any]
    requests: str | None = None


class Times(BaseModel):
    """CPU time that a process took, user and system, s.

    Attributes:
        start_s: until everything was loaded and the short trace replayed.
        replay_s: from the trace's file to the summary.
        simulation_s: of that, the simulation alone.
        process_s: the whole process with its children, from its start to its end.
        completed: requests that were served whole.
        versions: of the packages that were run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_s: float
    replay_s: float
    simulation_s: float
    process_s: float
    completed: int
    versions: dict[str, str]


def run_dynamo(python: Path, task: Task) -> Times:
    """Dynamo's replay, by its own Python.

    Raises:
        RuntimeError: it failed; with its last words.
    """
    # With -P this folder is no place for imports: its `dynamo` is ours.
    return _run("Dynamo", [str(python), "-P", str(Path(__file__).with_name("dynamo_process.py"))], task)


def run_ours(task: Task) -> Times:
    """Our simulator, by this Python.

    Raises:
        RuntimeError: it failed; with its last words.
    """
    return _run("disaggroute", [sys.executable, "-m", f"{__package__}.our_process"], task)


def foreign_environment() -> dict[str, str]:
    """The environment variables for another Python: without those that would lead it to our packages."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _run(name: str, command: list[str], task: Task) -> Times:
    result = Path(task.result)
    result.unlink(missing_ok=True)
    given = result.with_name(f"{result.stem}-task.json")
    given.write_text(json.dumps(asdict(task)))
    # Dynamo would say on its standard output which tables it loads.
    environment = foreign_environment() | {"DYN_LOG": "error"} if name == "Dynamo" else None
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, str(given)], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
        )
        try:
            # Not `wait`: only this tells what this one child used. It counts its own children as well.
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not result.is_file():
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines() or [f"it ended with {process.returncode}"]
            raise RuntimeError(f"{name} failed: {words[-1]}")
    return Times.model_validate({**json.loads(result.read_text()), "process_s": used.ru_utime + used.ru_stime})
