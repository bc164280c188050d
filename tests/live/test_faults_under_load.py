"""Faults under load, on emulated engines in processes: no request without a record, no wrong answer, and it goes on."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disaggroute.live.emulated_cluster import EmulatedCluster

from .emulated_router import KEY, MODEL, PROFILE, RouterThread, Tally, full_disk, load, recorded, router

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines die with their parent on Linux")

REQUESTS, AT_ONCE = 60, 12

SUMMARY: list[str] = []


@pytest.fixture(scope="module")
def engines() -> Iterator[EmulatedCluster]:
    with EmulatedCluster("2P3D", PROFILE, model=MODEL, time_scale=0.2, extra=("--max-model-len", "4096")) as running:
        yield running


@pytest.fixture
def served(engines: EmulatedCluster, tmp_path: Path) -> Iterator[RouterThread]:
    with router(engines, tmp_path / "records.jsonl") as running:
        yield running


def fault(engines: EmulatedCluster, name: str, **fields: Any) -> None:
    """Tells an engine to do something wrong."""
    url = next(engine.url for engine in engines.engines if engine.name == name)
    request = urllib.request.Request(f"{url}/emulator/faults", json.dumps(fields).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30):
        pass


def clear(engines: EmulatedCluster) -> None:
    for engine in engines.engines:
        with urllib.request.urlopen(
            urllib.request.Request(f"{engine.url}/emulator/faults", method="DELETE"), timeout=30
        ):
            pass


def settled(served: RouterThread, tally: Tally, what: str) -> None:
    """Every request has ended with a record, and the router has forgotten it; then it serves as before."""

    async def wait() -> None:
        for _ in range(3_000):
            if served.service.in_flight == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{served.service.in_flight} requests never ended")

    asyncio.run(wait())
    asyncio.run_coroutine_threadsafe(_flushed(served), served.loop).result(30)
    rows = recorded(served.records)
    SUMMARY.append(f"{what}: {tally.text(rows)}")
    assert tally.wrong == []
    assert set(tally.sent) <= rows.keys() and max(rows.values()) == 1
    assert served.service.router.state.in_flight == 0
    after = asyncio.run(load(served.clients, 6, 3, f"after-{what}"))
    assert after.right == 6, after


async def _flushed(served: RouterThread) -> None:
    assert served.service.records.flush()


def during(served: RouterThread, prefix: str, act: Any, *, leave_every: int = 0) -> Tally:
    """Sends the load; `act` runs when a part of it is under way."""

    async def main() -> Tally:
        task = asyncio.create_task(load(served.clients, REQUESTS, AT_ONCE, prefix, leave_every=leave_every))
        while served.service.in_flight < AT_ONCE // 2 and not task.done():
            await asyncio.sleep(0.005)
        await asyncio.to_thread(act)
        return await task

    return asyncio.run(main())


def test_all_answers_are_right_without_faults(served: RouterThread) -> None:
    tally = during(served, "calm", lambda: None)
    assert tally.right == REQUESTS, tally
    settled(served, tally, "no fault")


@pytest.mark.parametrize("name", ["decode/1", "prefill/1"])
def test_an_engine_is_killed_and_comes_back(served: RouterThread, engines: EmulatedCluster, name: str) -> None:
    def act() -> None:
        engines.kill(name)
        engines.restart(name)

    tally = during(served, "killed", act)
    assert tally.right >= REQUESTS // 2
    settled(served, tally, f"{name} killed and started again")
    for _ in range(3_000):
        if served.service.engine(name).health == "up":
            break
        asyncio.run(asyncio.sleep(0.01))
    assert served.service.engine(name).health == "up", served.service.engine(name).reason


def test_an_engine_stalls(served: RouterThread, engines: EmulatedCluster) -> None:
    tally = during(served, "stalled", lambda: fault(engines, "decode/0", kind="stall", seconds=15.0))
    settled(served, tally, "decode/0 stalled for 3 s")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("decode/0", {"kind": "drop_connection", "tokens": 2, "requests": 5}),
        ("decode/0", {"kind": "stream_error", "tokens": 1, "requests": 5}),
        ("decode/1", {"kind": "error_500", "requests": 5}),
        ("prefill/0", {"kind": "missing_kv_params", "requests": 5}),
        ("prefill/0", {"kind": "drop_connection", "tokens": 0, "requests": 5}),
        ("prefill/1", {"kind": "old_metric_names"}),
    ],
)
def test_an_engine_does_something_wrong(
    served: RouterThread, engines: EmulatedCluster, name: str, fields: dict[str, Any]
) -> None:
    tally = during(served, "wrong", lambda: fault(engines, name, **fields))
    clear(engines)
    said = ", ".join(f"{key} {value}" for key, value in fields.items() if key != "kind")
    settled(served, tally, f"{name}: {fields['kind']}" + (f" ({said})" if said else ""))


def test_clients_leave(served: RouterThread) -> None:
    tally = during(served, "left", lambda: None, leave_every=3)
    settled(served, tally, "every third client leaves after 50 ms")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
def test_the_disk_is_full(served: RouterThread) -> None:
    with full_disk(served.records):
        tally = during(served, "full", lambda: None)
        assert tally.right == REQUESTS
        assert served.service.records.waiting >= REQUESTS
        request = urllib.request.Request(f"{served.operators}/health")
        with urllib.request.urlopen(request, timeout=30) as answer:
            health = json.load(answer)
        assert health["status"] == "degraded" and "no space left on device" in str(health["problems"]).lower()
    settled(served, tally, "the disk of the records full")


def test_metrics_tell_what_happened(served: RouterThread, engines: EmulatedCluster) -> None:
    fault(engines, "decode/0", kind="error_500", requests=2)
    tally = during(served, "counted", lambda: None)
    clear(engines)
    request = urllib.request.Request(f"{served.operators}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    finished = [line for line in text.splitlines() if line.startswith("disaggroute_requests_total")]
    assert sum(float(line.split()[-1]) for line in finished) == REQUESTS
    assert "disaggroute_retries_total 2.0" in text
    settled(served, tally, "decode/0: two errors 500")


def test_show_the_summary() -> None:
    """Printed with -s, or when a test of this file fails."""
    print("\n".join(["faults under load:", *SUMMARY]))
