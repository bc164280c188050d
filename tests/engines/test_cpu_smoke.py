"""The shipped cluster `cpu-smoke`, real engines on the CPU, from `live up` to `live down` as people use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from disaggroute.envs import profiles
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.running import running
from disaggroute.live.up.processes import look, marks
from disaggroute.live.up.state import VARIABLE, StateFolder

from ..live.emulated_router import router
from ..live.engines.plain_qwen import continuation
from .processes import group, until_gone
from .test_router import WATCH, Door
from .two_leg_client import Client, new_prompt, run

pytestmark = pytest.mark.engines

NAME = "cpu-smoke"

START_S = 600

POLICIES = ("round-robin", "marginal-cost")


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "disaggroute", *words]


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
        """Runs `disaggroute ...` and gives what it says."""
        # With COLUMNS the table of `live status` is folded to that width, as on a screen.
        environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        done = subprocess.run(program(*words), capture_output=True, text=True, env=environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def leaders(self) -> list[int]:
        """Ids of the engines' first processes."""
        state = self.state.read()
        assert state is not None
        first = [self.state.first_process(engine) for engine in state.engines]
        return [process.pid for process in first if process is not None]


@pytest.fixture(scope="module")
def cpu_smoke(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuSmoke]:
    """`live up cpu-smoke` until the last test; then `live down`, after which nothing may be left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("state")))
        smoke, leaders = CpuSmoke(StateFolder(NAME)), []
        try:
            smoke.command("live", "up", NAME, "--wait", str(START_S))
            leaders = smoke.leaders()
            assert len(leaders) == 3
            yield smoke
        finally:
            smoke.command("live", "down", NAME)
        for leader in leaders:
            until_gone(leader)


class Up:
    """What the router is told of the engines."""

    def __init__(self, smoke: CpuSmoke) -> None:
        self.cluster = lambda: smoke.cluster


def test_the_engines_outlive_the_command_and_are_well(cpu_smoke: CpuSmoke) -> None:
    rows = [line.split() for line in cpu_smoke.command("live", "status", NAME).splitlines() if "http://" in line]
    assert [row[0] for row in rows] == ["prefill/0", "decode/0", "decode/1"]
    assert [int(row[2]) for row in rows] == cpu_smoke.leaders()
    for row in rows:
        assert row[3:5] == ["yes", "yes"] and row[6] == "0.32.0"
        processes = group(int(row[2]))
        assert len(processes) >= 3  # the server, its core and its worker
        # vLLM names its processes, and the name must not stand where the mark does.
        found = {marks(each) for each in map(look, processes) if each is not None}
        assert len(found) == 1 and None not in found


def test_a_second_up_starts_nothing(cpu_smoke: CpuSmoke) -> None:
    before = cpu_smoke.leaders()
    assert "was up already" in cpu_smoke.command("live", "up", NAME)
    assert cpu_smoke.leaders() == before


def test_the_router_finds_them_by_name_and_each_pair_answers_right(cpu_smoke: CpuSmoke, tmp_path: Path) -> None:
    # Round robin: one request for each decode engine.
    with router(Up(cpu_smoke), tmp_path / "records.jsonl", watch=WATCH, policy="round-robin") as served:  # type: ignore

        async def test(client: Client) -> None:
            for _ in cpu_smoke.cluster.decode:
                prompt = new_prompt(100)
                answer = await client.ask(Door(served.clients), {"prompt": prompt, "max_tokens": 8, "ignore_eos": True})
                assert answer.tokens == continuation(prompt, 8)

        run(test)


def test_gates_calibration_an_evaluation_that_is_killed_and_the_comparison(cpu_smoke: CpuSmoke, tmp_path: Path) -> None:
    gates = tmp_path / "gates.json"
    cpu_smoke.command("live", "gate", NAME, "--out", str(gates))
    assert json.loads(gates.read_text())["passed"]

    calibration = tmp_path / "calibration"
    cpu_smoke.command("live", "calibrate", NAME, "--quick", "--no-gates", "--out", str(calibration))
    profile = calibration / f"{NAME}.yaml"
    assert profiles.load(str(profile)).memory.block_size == 32
    fits = json.loads((calibration / "fits.json").read_text())
    # What engines count themselves is never more than a client sees.
    assert fits["prefill_times"] == fits["transfer_times"] == "the engines' own count"
    assert min(fits["client_overhead"].values()) >= 0

    options, out = tmp_path / "options.yaml", tmp_path / "run"
    options.write_text(yaml.safe_dump({"router": {"watch": WATCH}}))
    words = ["evaluate", "chat", "--backend", "live", "--cluster", NAME, "--no-gates", "--live-options", str(options)]
    words += ["--rate", "2", "--duration", "20", "--warmup", "2", "--seeds", "1", "--policies", ",".join(POLICIES)]
    words += ["--no-figures", "--out", str(out)]
    kill_during(program(*words), lambda: answers(out, 1) >= 10)
    assert not list(out.glob("runs/*/*.json"))
    cpu_smoke.command(*words)
    table = pq.read_table(out / "records.parquet").to_pandas()
    for policy in POLICIES:
        rows = table[table["policy"] == policy]
        assert rows["request"].tolist() == list(range(len(rows))) and rows["measured"].sum() >= 30
        assert set(rows["status"]) == {"finished"}
    assert sorted(len(list(place.glob("attempt-*"))) for place in out.glob("live/*/*")) == [1, 2]

    told = cpu_smoke.command("live", "compare", str(out), "--profile", str(profile))
    assert "TTFT" in told and all(policy in told for policy in POLICIES)
    print(told)


def answers(out: Path, attempt: int) -> int:
    """Lines of the router's records of an attempt at the first run."""
    files = list(out.glob(f"live/*/*/attempt-{attempt}/router.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def kill_during(words: list[str], condition: Callable[[], bool]) -> None:
    """Starts a program and kills it without warning at a moment."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + START_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
