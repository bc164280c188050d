"""The shipped cluster `cpu-smoke`, brought up by the command as people do, once for all tests that take it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.running import running
from disaggroute.live.up.state import VARIABLE, StateFolder

from .processes import group

NAME = "cpu-smoke"

START_S = 600


@dataclass(frozen=True)
class CpuSmoke:
    """Three real engines that outlive the command which has started them.

    Attributes:
        state: what `live up` has written down.
    """

    state: StateFolder

    @property
    def cluster(self) -> LiveCluster:
        """With their addresses."""
        return running(NAME)

    def command(self, *words: str, code: int = 0) -> str:
        """Runs `disaggroute live ...` and gives what it says."""
        live = [sys.executable, "-m", "disaggroute", "live"]
        done = subprocess.run([*live, *words], capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def leaders(self) -> list[int]:
        """Ids of the engines' first processes."""
        state = self.state.read()
        assert state is not None
        first = [self.state.first_process(engine) for engine in state.engines]
        return [process.pid for process in first if process is not None]


@pytest.fixture(scope="session")
def cpu_smoke(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuSmoke]:
    """`live up cpu-smoke` until the last test; then `live down`, after which nothing may be left.

    The state's folder stays in the environment, so that other commands find the engines too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("state")))
        smoke, leaders = CpuSmoke(StateFolder(NAME)), []
        try:
            smoke.command("up", NAME, "--wait", str(START_S))
            leaders = smoke.leaders()
            assert len(leaders) == 3
            yield smoke
        finally:
            smoke.command("down", NAME)
        assert not set().union(*map(group, leaders))
