"""An attempt, with a scripted router in place of the process: what ends it, and what it says."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs.trace import Trace
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.drive import driving
from disaggroute.live.drive.attempt import Attempt, new_attempt
from disaggroute.live.drive.driving import DriveOptions, EngineLost, Wanted, drive
from disaggroute.live.drive.plan import Plan
from disaggroute.live.drive.router_process import Ejected, RouterEnded, RouterProcess
from disaggroute.live.http_client import Unreachable

from ..scripted_engine import ScriptedEngine, hang, stream
from ..waiting import run
from .files import CLUSTER
from .test_load import WHOLE
from .traces import trace

ASKED = trace((0.0, 5, 3), (0.02, 5, 3))

Look = Callable[[], list[Ejected]]


class Scripted:
    """Stands for the router's process."""

    def __init__(self, engine: ScriptedEngine, look: Look, alive: Callable[[], None]) -> None:
        self.url, self._look, self.check = engine.url, look, alive

    async def __aenter__(self) -> Scripted:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ejected(self) -> list[Ejected]:
        return self._look()


def driven(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    *acts: Any,
    asked: Trace = ASKED,
    look: Look = lambda: [],
    alive: Callable[[], None] = lambda: None,
    **options: Any,
) -> tuple[list[str], list[dict[str, Any]]]:
    """What was said, and the lines of the client's file."""
    said: list[str] = []
    attempt = new_attempt(place)

    async def quiet(*_: object, **__: object) -> None:
        pass

    async def story() -> None:
        async with ScriptedEngine() as router:
            router.acts = list(acts) or [stream(*WHOLE)] * len(asked)
            router.says["/health"] = 200, b"{}"
            monkeypatch.setattr(driving, "quieten", quiet)
            monkeypatch.setattr(driving, "RouterProcess", lambda *_: Scripted(router, look, alive))
            monkeypatch.setattr(driving, "LOOK_S", 0.01)
            wanted = Wanted(CLUSTER, "card", 3, "bucket", Plan(asked, "tiny", "run", (1,)), {"requests": len(asked)})
            await drive(wanted, DriveOptions(**options), attempt, said.append)

    run(story())
    return said, [json.loads(line) for line in attempt.client.read_text().splitlines()]


def test_a_whole_attempt_begins_with_what_it_is_and_ends_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, lines = driven(tmp_path, monkeypatch)
    assert said == []
    assert lines[0]["requests"] == 2 and lines[0]["origin_ns"] > 0
    assert sorted(line["index"] for line in lines[1:-1]) == [0, 1]
    assert lines[-1] == {"ended": True, "requests": 2, "ejected": []}


def test_requests_that_were_given_up_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, lines = driven(tmp_path, monkeypatch, stream(*WHOLE), hang, drain_s=0.1)
    assert said == ["warning: 1 requests had not ended 0.1 s after the last was sent: failed"]
    assert [line["status"] for line in lines[1:-1]] == ["finished", "failed"]


def test_how_far_a_run_is_is_told_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "TELL_S", 0.0)
    said, _ = driven(tmp_path, monkeypatch, stream(*WHOLE), hang, drain_s=0.2)
    assert "2 of 2 requests sent, 1 under way" in said


def test_an_ejected_engine_is_told_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Ejected("decode/0", 1, "no connection")
    said, lines = driven(tmp_path, monkeypatch, hang, hang, look=lambda: [gone], drain_s=0.1)
    assert said[0] == "warning: decode/0 was ejected: no connection" and len(said) == 2
    assert lines[-1]["ejected"] == [{"name": "decode/0", "times": 1, "reason": "no connection"}]


def test_it_ends_the_run_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"decode/0 was ejected in the middle of the run \(no connection\), which ends it"
    with pytest.raises(EngineLost, match=sentence):
        driven(
            tmp_path,
            monkeypatch,
            hang,
            hang,
            look=lambda: [Ejected("decode/0", 1, "no connection")],
            on_engine_loss="stop",
        )


def test_a_router_that_is_too_busy_to_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> list[Ejected]:
        raise Unreachable("busy")

    said, lines = driven(tmp_path, monkeypatch, stream(*WHOLE), hang, look=busy, drain_s=0.1)
    assert len(said) == 1 and lines[-1]["ended"]


def test_a_router_that_ends_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead() -> None:
        raise RouterEnded("the router ended")

    with pytest.raises(RouterEnded):
        driven(tmp_path, monkeypatch, hang, hang, alive=dead)


def test_a_full_disk_is_told_and_the_attempt_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("client.jsonl") and b'"index"' in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(RuntimeError, match=r"cannot write .*client\.jsonl: no space left on device; make room and"):
        driven(tmp_path, monkeypatch)


def started(place: Path, cluster: LiveCluster, policy: str = "card") -> RouterProcess:
    place.mkdir(exist_ok=True)
    return RouterProcess(cluster, policy, 1, "bucket", Attempt(place, 1))


def test_a_router_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with started(tmp_path, CLUSTER, "crad"):
            raise AssertionError

    with pytest.raises(RouterEnded, match="the router did not start: unknown policy 'crad'; nearest: card"):
        run(story())


def test_a_router_that_was_killed_says_its_last_words(tmp_path: Path) -> None:
    async def story() -> None:
        async with ScriptedEngine() as prefill, ScriptedEngine() as decode:
            pools = {"prefill": [{"url": prefill.url}], "decode": [{"url": decode.url}]}
            cluster = LiveCluster.load({"model": "tiny", "profile": "a40-qwen2.5-3b", **pools})
            async with started(tmp_path, cluster) as router:
                router.check()
                assert await router.ejected() == []
                assert router._process is not None
                router._process.kill()
                await asyncio.to_thread(router._process.wait)
                router.check()

    with pytest.raises(RouterEnded, match=r"the router ended in the middle of the run \(exit code -9\): records in "):
        run(story())
