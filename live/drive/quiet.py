"""Before a run: engines that do nothing, and caches that hold nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...envs.backend import Say
from ..engine_metrics import MissingMetric, reported
from ..http_client import HttpClient, Unreachable
from ..prefix_cache import NoReset, reset_prefix_cache

POLL_S = 0.05

ASK_S = 10.0
"""Wall time that an engine has for an answer."""

HOW = "real engines take it with VLLM_SERVER_DEV_MODE=1 in their environment; --no-reset goes on without"


class NotIdle(RuntimeError):
    """Somebody else uses an engine."""


async def quieten(engines: Sequence[tuple[str, str]], *, idle_s: float, reset: bool, say: Say) -> None:
    """Waits until engines do nothing, and resets their caches.

    Args:
        engines: name and URL of each.
        idle_s: how long that may take, wall time.
        reset: whether an engine whose cache cannot be reset is an error; else that is said.
        say: told of such engines.

    Raises:
        NotIdle: an engine is still busy; names it and what it does.
        Unreachable: one does not answer.
        RuntimeError: a cache cannot be reset.
        MissingMetric: an engine does not say what it does.
    """
    clients = [(name, HttpClient(url)) for name, url in engines]
    try:
        await asyncio.gather(*(_idle(name, client, idle_s) for name, client in clients))
        found = await asyncio.gather(*(_reset(name, client, idle_s) for name, client in clients))
        for problem in filter(None, found):
            if reset:
                raise RuntimeError(f"{problem}; {HOW}")
            say(f"warning: {problem}: what an earlier run left there may help this one")
    finally:
        for _, client in clients:
            await client.close()


async def _idle(name: str, client: HttpClient, within_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        answer = await client.fetch("GET", "/metrics", headers=b"", timeout=ASK_S)
        if answer.status != 200:
            raise Unreachable(f"{name} ({client.url}/metrics) answers {answer.status}")
        try:
            usage, running, waiting = reported(answer.body)
        except MissingMetric as error:
            raise MissingMetric(f"{name} ({client.url}/metrics): {error}") from None
        if not (usage or running or waiting):
            return
        if loop.time() >= deadline:
            raise NotIdle(
                f"{name} ({client.url}) is not idle after {within_s:g} s: {running} requests running, {waiting} "
                f"waiting, {usage:.1%} of its KV cache in use; a run needs the engines for itself"
            )
        await asyncio.sleep(POLL_S)


async def _reset(name: str, client: HttpClient, within_s: float) -> str:
    """Resets a prefix cache; why that did not work, or nothing."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        try:
            if await reset_prefix_cache(client, ASK_S):
                return ""
        except NoReset as status:
            return f"{name} ({client.url}) cannot reset its prefix cache (it answers {status})"
        if loop.time() >= deadline:  # A block was just being freed, perhaps.
            return f"{name} ({client.url}) did not reset its prefix cache within {within_s:g} s"
        await asyncio.sleep(POLL_S)
