"""No process of an engine outlives the one that started it, and an engine that cannot start says why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from disaggroute.live.engines.launcher import EngineOptions, RealEngine

from .conftest import Cluster

pytestmark = pytest.mark.engines

LIMIT_S = 60.0

STARTER = """
import sys, time
from pathlib import Path
from disaggroute.live.engines.launcher import RealEngine
engine = RealEngine("mixed", *map(Path, sys.argv[1:4]))
engine.start()
engine.wait_ready()
print(engine.pid, flush=True)
time.sleep(3600)
"""


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {LIMIT_S:g} s"
        time.sleep(0.1)


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


def test_an_engine_has_several_processes_and_none_is_left_when_the_first_is_killed(cluster: Cluster) -> None:
    engine = cluster.decodes[1]
    assert len(group(engine.pid)) >= 3
    os.kill(engine.pid, 9)
    until(lambda: not group(engine.pid), "all processes of the engine are gone")


def test_an_engine_ends_with_the_process_that_started_it(python: Path, model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(model), str(python), str(tmp_path / "engine.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        try:
            leader = int(starter.stdout.readline())
            assert len(group(leader)) >= 3
        finally:
            starter.kill()
    until(lambda: not group(leader), "all processes of the engine are gone")


def test_an_engine_that_cannot_start_says_why_and_where_its_log_is(python: Path, model: Path, tmp_path: Path) -> None:
    odd = replace(EngineOptions(), arguments=("--max-model-len", "1000000"))
    log = tmp_path / "engine.log"
    with RealEngine("mixed", model, python, log, options=odd) as engine:
        with pytest.raises(RuntimeError, match=rf"ended before it was ready .*1000000.*; its log is {log}$"):
            engine.wait_ready()
        assert not group(engine.pid)


def test_an_engine_that_is_asked_to_end_does(cluster: Cluster) -> None:
    engine = cluster.decodes[1]
    leader = engine.pid
    engine.stop()
    assert not engine.alive
    until(lambda: not group(leader), "all processes of the engine are gone")
