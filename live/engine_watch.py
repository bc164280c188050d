"""The watch over the engines: polls every 50 ms, ejection of those that do not answer, and their return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from pydantic import BaseModel, Field

from ..envs.cluster_config import STRICT
from ..envs.error_text import error_text
from .clock import Clock
from .cluster_file import LiveCluster
from .engine import Engine, Unfit
from .engine_metrics import MissingMetric
from .http_client import Unreachable

log = logging.getLogger(__name__)

SHORTEST_S = 0.005
"""Wall time between polls of engines that are emulated faster than life."""


class WatchLimits(BaseModel):
    """When an engine is ejected, and when it returns.

    Attributes:
        poll_interval_s: between polls of an engine, in its own time (`LiveCluster.time_scale`), but at least 5 ms.
        silent_s: an engine that has answered no poll for so long, by the wall, is ejected.
        stalled_s: so is one that streams answers and has sent no byte for so long, in its own time where it is slower
            than life. Legs whose answer comes whole say nothing until their end, and have limits of their own
            (`RelayLimits`).
        return_polls: polls in a row that an ejected engine must answer before it returns.
    """

    model_config = STRICT

    poll_interval_s: float = Field(0.05, ge=0.001, le=60)
    silent_s: float = Field(5.0, ge=0.01, le=3_600)
    stalled_s: float = Field(120.0, ge=0.01, le=86_400)
    return_polls: int = Field(3, ge=1, le=1_000)


OnPoll = Callable[[Engine], None]
"""Told after each poll that was answered."""

OnChange = Callable[[Engine], None]
"""Told when an engine was ejected or has returned."""


class EngineWatch:
    """One task per engine.

    An ejected engine's connections are closed, so that legs that hang there fail and can be sent elsewhere. One that
    returns may be another process, and so may one that has missed a single poll: it is asked anew what it is.
    """

    def __init__(
        self, cluster: LiveCluster, clock: Clock, limits: WatchLimits, on_poll: OnPoll, on_change: OnChange
    ) -> None:
        self._cluster, self._clock, self.limits = cluster, clock, limits
        self._on_poll, self._on_change = on_poll, on_change
        self._tasks: dict[Engine, asyncio.Task[None]] = {}

    def watch(self, engine: Engine) -> None:
        """Begins to watch an engine."""
        if engine not in self._tasks:
            self._tasks[engine] = asyncio.create_task(self._watch(engine), name=f"watch {engine.name}")

    async def forget(self, engine: Engine) -> None:
        """Ends it."""
        task = self._tasks.pop(engine, None)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def close(self) -> None:
        """Ends all of it."""
        for engine in list(self._tasks):
            await self.forget(engine)

    async def eject(self, engine: Engine, reason: str) -> None:
        """Sends nothing more to an engine until it has answered again; legs in flight there fail."""
        if engine.health == "ejected":
            engine.reason = reason
            return
        if engine.health == "up":
            engine.ejections += 1
            log.warning("%s is ejected: %s", engine.name, reason)
        engine.health, engine.reason = "ejected", reason
        try:
            self._on_change(engine)
        except Exception:
            log.exception("telling that %s is ejected", engine.name)
        await engine.client.close()

    async def _watch(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        limits = self.limits
        interval = max(limits.poll_interval_s * self._cluster.time_scale, min(limits.poll_interval_s, SHORTEST_S))
        stalled_s = self._clock.patience(limits.stalled_s)
        answered = loop.time()
        good = 0
        anew = engine.health != "up"  # It is, or may be, another process than the one that was met.
        stalled = False
        while True:
            began = loop.time()
            try:
                if anew and (engine.health == "up" or good + 1 >= limits.return_polls):
                    await engine.meet(self._cluster, limits.silent_s)
                    anew = False
                engine.poll = await engine.ask_poll(limits.silent_s)
                good, answered = good + 1, loop.time()
                engine.polled_at = self._clock.now()
                if engine.health != "up" and good >= limits.return_polls:
                    self._returned(engine, well=not stalled)
                    stalled = False
                self._on_poll(engine)
            except (Unfit, MissingMetric) as error:
                good, anew, answered = 0, True, loop.time()
                await self.eject(engine, str(error))
            except Unreachable as error:
                good, anew, stalled = 0, True, False
                if loop.time() - answered >= limits.silent_s or engine.health == "unknown":
                    await self.eject(engine, str(error))
            except Exception as error:  # The watch must outlive whatever an engine answers and whoever is told of it.
                good, anew = 0, True
                reason = error_text(error)
                if reason != engine.reason:
                    log.exception("watching %s", engine.name)
                await self.eject(engine, reason)
            if engine.health == "up" and engine.streams and loop.time() - engine.progress >= stalled_s:
                good, anew, stalled = 0, True, True
                await self.eject(engine, f"{engine.streams} streams and not a byte for {limits.stalled_s:g} s")
            await asyncio.sleep(max(interval - (loop.time() - began), 0.001))

    def _returned(self, engine: Engine, well: bool) -> None:
        """An engine may be sent requests again; one that only stalled must show first that it is well."""
        if engine.health == "ejected":
            log.warning("%s has returned", engine.name)
        engine.health, engine.reason = "up", ""
        if well:
            engine.breaker.succeeded()
        self._on_change(engine)
