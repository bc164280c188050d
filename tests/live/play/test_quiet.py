"""Engines come to rest before an episode, or a sentence says what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.play.quiet import RESET, NotIdle, come_to_rest
from disaggroute.live.service import Service, ServiceOptions

from ..scripted_engine import MODEL, ScriptedEngine, metrics
from ..waiting import run, until

PROFILE = "a40-qwen2.5-3b"
IDLE = metrics(value=0.0).replace(b"} 3.0", b"} 0.0").replace(b"} 2.0", b"} 0.0")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Service, list[ScriptedEngine]]]:
    """A router over an idle prefill and an idle decode engine."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(2)]
        for engine in engines:
            engine.metrics = IDLE
            engine.says[RESET] = 200, b'{"success": true}'
        pools = {role: [{"url": engine.url}] for role, engine in zip(("prefill", "decode"), engines, strict=True)}
        cluster = LiveCluster.load({"name": "here", "model": MODEL, "profile": PROFILE, "lease_s": 1, **pools})
        service = Service(cluster, ServiceOptions(watch={"poll_interval_s": 0.005}, drain_s=0))  # type: ignore[arg-type]
        await service.start(5.0)
        try:
            yield service, engines
        finally:
            await service.close()


def test_idle_engines_are_told_to_empty_their_caches() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            assert await come_to_rest(service) == []
            assert [engine.asked[-1] for engine in engines] == [(RESET, b"{}")] * 2

    run(story())


def test_a_busy_engine_is_waited_for() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[1].metrics = metrics()
            seen = engines[1].polls

            async def rest() -> None:
                await until(lambda: engines[1].polls > seen + 3)
                assert all(path != RESET for path, _ in engines[1].asked)
                engines[1].metrics = IDLE

            await asyncio.gather(come_to_rest(service), rest())
            assert engines[1].asked[-1][0] == RESET

    run(story())


def test_engines_that_stay_busy_are_named_with_what_they_do() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[1].metrics = metrics()
            with pytest.raises(NotIdle) as error:
                await come_to_rest(service, -0.9)
            assert str(error.value) == (
                "here is not idle after 0.1 s (decode/0 has 3 running and 2 waiting requests and 25.0% of its KV in "
                "use); who else uses it?"
            )

    run(story())


def test_an_engine_that_is_away_is_not_waited_for() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[1].metrics = metrics()
            service.engines[1].health = "ejected"
            assert await come_to_rest(service, 0.0) == []

    run(story())


def test_an_engine_that_cannot_empty_its_cache_is_said() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[0].says[RESET] = 404, b"{}"
            (problem,) = await come_to_rest(service)
            assert problem.startswith(f"prefill/0 ({engines[0].url}/reset_prefix_cache) answers 404; its prefix cache")

    run(story())


def test_one_that_refuses_for_a_while_is_asked_again() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[0].says[RESET] = 200, b'{"success": false}'

            def asked() -> int:
                return [path for path, _ in engines[0].asked].count(RESET)

            async def relent() -> None:
                await until(lambda: asked() > 2)
                engines[0].says[RESET] = 200, b""  # older engines say nothing

            found, _ = await asyncio.gather(come_to_rest(service), relent())
            assert found == []

    run(story())


def test_one_that_refuses_to_the_end_is_said() -> None:
    async def story() -> None:
        async with served() as (service, engines):
            engines[0].says[RESET] = 200, b'{"success": false}'
            (problem,) = await come_to_rest(service, -0.8)
            assert problem.endswith("did not empty its prefix cache")

    run(story())
