"""`live up cpu-smoke` on real engines: they run by themselves, pass KV to each other, and all of them end."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.live.up.processes import look, marks

from ..live.emulated_router import router
from ..live.engines.plain_qwen import continuation
from .cpu_smoke import NAME, CpuSmoke
from .processes import group
from .test_router import WATCH, Door
from .two_leg_client import Client, new_prompt, run

pytestmark = pytest.mark.engines


class Up:
    """What the router is told of the engines."""

    def __init__(self, smoke: CpuSmoke) -> None:
        self.cluster = lambda: smoke.cluster


def test_the_engines_outlive_the_command_and_are_well(cpu_smoke: CpuSmoke) -> None:
    rows = [line.split() for line in cpu_smoke.command("status", NAME).splitlines() if "http://" in line]
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
    assert "was up already" in cpu_smoke.command("up", NAME)
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
