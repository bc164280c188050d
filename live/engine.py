"""One engine as the router knows it: its address, what it is, and whether requests may go there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from ..envs.cluster import EngineSpec
from .breaker import Breaker
from .cluster_file import EngineEntry, LiveCluster, Role
from .engine_metrics import MissingMetric, Reported, cache_size, reported
from .http_client import Answer, HttpClient, Unreachable
from .two_legs import version_of

Health = Literal["unknown", "up", "ejected"]


class Unfit(ValueError):
    """An engine that is not what the cluster says: another model or block size, or a metric is missing."""


@dataclass(eq=False)
class Engine:
    """One engine.

    Attributes:
        role: prefill, decode or mixed.
        name: in messages, records and metrics.
        entry: as written in the cluster's file.
        client: connections to it.
        breaker: counts its faults.
        health: unknown until it was seen once.
        reason: why it is not up.
        draining: nothing new is sent there.
        legs: legs in flight.
        progress: when the last byte of a leg came, or the first of them was sent, s of the event loop's clock.
        version: of vLLM, as numbers; None: unknown.
        block_size: tokens per KV block; 0: not seen yet.
        blocks: usable KV blocks.
        max_model_len: prompt and output tokens; 0: not told.
        poll: what it reported last.
        polled_at: when, ps of the router's clock; −1: never.
        ejections: how often it was ejected.
    """

    role: Role
    name: str
    entry: EngineEntry
    client: HttpClient
    breaker: Breaker
    health: Health = "unknown"
    reason: str = "not seen yet"
    draining: bool = False
    legs: int = 0
    progress: float = 0.0
    version: tuple[int, ...] | None = None
    block_size: int = 0
    blocks: int = 0
    max_model_len: int = 0
    poll: Reported | None = None
    polled_at: int = -1
    ejections: int = 0
    serial: int = field(default=-1)

    @staticmethod
    def of(role: Role, name: str, entry: EngineEntry, *, faults: int, pause_s: float) -> Engine:
        """An engine that nobody has seen yet."""
        return Engine(role, name, entry, HttpClient(entry.url), Breaker(faults, pause_s))

    def may_send(self, now: float) -> bool:
        """Whether new requests may go there (s of the event loop's clock)."""
        return self.health == "up" and not self.draining and self.breaker.may_send(now)

    def leg_begins(self, now: float) -> int:
        """A leg is sent; returns the breaker's ticket for it."""
        if self.legs == 0:
            self.progress = now
        self.legs += 1
        return self.breaker.sent(now)

    def leg_ends(self) -> None:
        """A leg has ended, well or not."""
        self.legs -= 1

    async def meet(self, cluster: LiveCluster, timeout: float) -> None:
        """Asks the engine what it is, and checks that against the cluster.

        Args:
            cluster: what it must fit.
            timeout: s for each question.

        Raises:
            Unreachable: it does not answer.
            Unfit: it serves another model, has another block size, or does not export a metric; names what.
        """
        models = await self._asked("/v1/models", timeout)
        served = models.get("data") if isinstance(models, dict) else None
        entries = [entry for entry in served or [] if isinstance(entry, dict)]
        mine = next((entry for entry in entries if entry.get("id") == cluster.model), None)
        if mine is None:
            names = ", ".join(str(entry.get("id")) for entry in entries) or "none"
            raise Unfit(f"{self.name} ({self.client.url}) serves {names}; the cluster's model is {cluster.model}")
        metrics = await self.client.fetch("GET", "/metrics", headers=b"", timeout=timeout)
        try:
            reported(metrics.body)
            block_size, blocks = cache_size(metrics.body)
        except MissingMetric as error:
            raise Unfit(f"{self.name} ({self.client.url}/metrics): {error}") from None
        if cluster.block_size not in (None, block_size):
            raise Unfit(f"{self.name} has KV blocks of {block_size} tokens; the cluster's have {cluster.block_size}")
        self.block_size, self.blocks = block_size, blocks
        length = mine.get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else 0
        try:
            self.version = version_of((await self._asked("/version", timeout)).get("version"))
        except (Unfit, AttributeError):
            self.version = None

    async def _asked(self, path: str, timeout: float) -> Any:
        answer: Answer = await self.client.fetch("GET", path, headers=b"", timeout=timeout)
        if answer.status != 200:
            raise Unfit(f"{self.name} ({self.client.url}{path}) answers {answer.status}")
        try:
            return orjson.loads(answer.body)
        except ValueError:
            raise Unfit(f"{self.name} ({self.client.url}{path}) does not answer in JSON") from None

    def spec(self, cluster: LiveCluster) -> EngineSpec:
        """What the router believes about it: the profile, with the size of the KV cache that it reports.

        Raises:
            ValueError: an unknown profile, or values that do not fit it.
        """
        changes = self.entry.overrides.model_dump(exclude_none=True)
        if self.blocks:
            changes = {key: value for key, value in changes.items() if key not in ("num_blocks", "kv_tokens")}
            changes |= {"num_blocks": self.blocks, "block_size": self.block_size}
        if self.max_model_len:
            changes |= {"max_model_len": self.max_model_len}
        return cluster.profile_of(self.entry).engine(**changes)

    async def ask_poll(self, timeout: float) -> Reported:
        """What it reports now.

        Raises:
            Unreachable: no answer in time, or not 200.
            MissingMetric: a metric has gone.
        """
        answer = await self.client.fetch("GET", "/metrics", headers=b"", timeout=timeout)
        if answer.status != 200:
            raise Unreachable(f"{self.client.url}/metrics answers {answer.status}")
        return reported(answer.body)


async def meet_all(engines: list[Engine], cluster: LiveCluster, timeout: float) -> list[Unfit | Unreachable | None]:
    """Meets engines side by side; for each None, or what is wrong."""

    async def one(engine: Engine) -> Unfit | Unreachable | None:
        try:
            await engine.meet(cluster, timeout)
        except (Unfit, Unreachable) as error:
            return error
        return None

    return list(await asyncio.gather(*(one(engine) for engine in engines)))
