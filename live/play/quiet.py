"""Engines at rest: nothing in flight, no KV held, nothing in their prefix caches."""

from __future__ import annotations

import asyncio

import orjson

from ..engine import Engine
from ..http_client import Unreachable
from ..service import Service

RESET = "/reset_prefix_cache"

REST_S = 10.0
"""Wall seconds that engines may take to come to rest, beyond the lease of KV that nobody came for."""

BETWEEN_S = 0.01


class NotIdle(RuntimeError):
    """Engines did not come to rest in time."""


async def come_to_rest(service: Service, rest_s: float = REST_S) -> list[str]:
    """Waits until the engines are idle, and empties their prefix caches.

    Args:
        service: a router that has met them and has sent nothing yet.
        rest_s: wall seconds, beyond the lease.

    Returns:
        A sentence for each engine whose cache could not be emptied.

    Raises:
        NotIdle: they were not idle in time; says what they have.
    """
    loop = asyncio.get_running_loop()
    cluster = service.cluster
    limit = rest_s + cluster.lease_s * cluster.time_scale
    deadline, since = loop.time() + limit, service.clock.now()
    while busy := [what for engine in service.engines if (what := _business(engine, since))]:
        if loop.time() > deadline:
            raise NotIdle(f"{cluster.name} is not idle after {limit:g} s ({'; '.join(busy)}); who else uses it?")
        await asyncio.sleep(BETWEEN_S)
    up = [engine for engine in service.engines if engine.health == "up"]
    return [problem for problem in await asyncio.gather(*(_empty(engine, deadline) for engine in up)) if problem]


def _business(engine: Engine, since: int) -> str:
    """What an engine has to do; empty: nothing, or it is away."""
    poll = engine.poll
    if engine.health != "up":
        return ""
    if poll is None or engine.polled_at <= since:
        return f"{engine.name} has not been polled"
    if poll.running or poll.waiting or poll.usage * engine.blocks >= 0.5:
        return (
            f"{engine.name} has {poll.running} running and {poll.waiting} waiting requests and {poll.usage:.1%} of "
            "its KV in use"
        )
    return ""


async def _empty(engine: Engine, deadline: float) -> str:
    """Empties an engine's prefix cache; a sentence if that is not possible."""
    where = f"{engine.name} ({engine.client.url}{RESET})"
    while True:
        left = deadline - asyncio.get_running_loop().time()
        try:
            answer = await engine.client.fetch("POST", RESET, b"{}", timeout=max(left, 1.0))
        except Unreachable as error:
            return str(error)
        if answer.status != 200:
            return f"{where} answers {answer.status}; its prefix cache is as it was (vLLM: VLLM_SERVER_DEV_MODE=1)"
        if not _refused(answer.body):
            return ""
        if left <= 0:  # It refuses while a block is in use.
            return f"{where} did not empty its prefix cache"
        await asyncio.sleep(BETWEEN_S)


def _refused(body: bytes) -> bool:
    """Whether an engine says that it did not; older ones answer with nothing at all."""
    try:
        said = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("success") is False
