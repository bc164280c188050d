"""No process of an engine outlives the one that started it, and an engine that cannot start says why."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from disaggroute.live.engines.launcher import EngineOptions, RealEngine

from .processes import group, until_gone

pytestmark = pytest.mark.engines

STARTER = """
import sys, time
from pathlib import Path
from disaggroute.live.engines.launcher import RealEngine
engine = RealEngine("mixed", *map(Path, sys.argv[1:4]))
engine.start()
engine.wait_ready(600)
print(engine.pid, flush=True)
time.sleep(3600)
"""


def test_an_engine_ends_with_the_process_that_started_it(python: Path, model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(model), str(python), str(tmp_path / "engine.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        try:
            leader = int(starter.stdout.readline())
            assert len(group(leader)) >= 3
        finally:
            starter.kill()
    until_gone(leader)


def test_an_engine_that_cannot_start_says_why_and_where_its_log_is(python: Path, model: Path, tmp_path: Path) -> None:
    odd = replace(EngineOptions(), max_model_len=1_000_000)
    log = tmp_path / "engine.log"
    with RealEngine("mixed", model, python, log, options=odd) as engine:
        with pytest.raises(RuntimeError, match=rf"ended before it was ready \(.*1000000.*\); its log is {log}$"):
            engine.wait_ready(600)
        assert not group(engine.pid)
