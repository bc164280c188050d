"""One engine as the router knows it: its address, what it is, and whether requests may go there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from ..envs.cluster import EngineSpec
from .breaker import Breaker
from .cluster_file import EngineEntry, LiveCluster, Role
from .engine_metrics import MissingMetric, Reported, cache_size, reported
from .http_client import HttpClient, Unreachable
from .running import with_way_out
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
        streams: those of them whose answer is streamed, so that bytes come all the time.
        progress: when the last byte of a leg came, or the first of the streams was sent, s of the event loop's clock.
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
    streams: int = 0
    progress: float = 0.0
    version: tuple[int, ...] | None = None
    block_size: int = 0
    blocks: int = 0
    max_model_len: int = 0
    poll: Reported | None = None
    polled_at: int = -1
    ejections: int = 0

    @staticmethod
    def of(role: Role, name: str, entry: EngineEntry, *, faults: int, pause_s: float) -> Engine:
        """An engine that nobody has seen yet."""
        return Engine(role, name, entry, HttpClient(entry.url), Breaker(faults, pause_s))

    def may_send(self, now: float) -> bool:
        """Whether new requests may go there (s of the event loop's clock)."""
        return self.health == "up" and not self.draining and self.breaker.may_send(now)

    def may_go_on(self, ticket: int) -> bool:
        """Whether a request that was assigned earlier, with this ticket of the breaker, may still be sent."""
        return self.health == "up" and self.breaker.lets(ticket)

    def leg_begins(self, now: float, streamed: bool = False) -> None:
        """A leg is sent."""
        if streamed and self.streams == 0:
            self.progress = now
        self.legs += 1
        self.streams += streamed

    def leg_ends(self, streamed: bool = False) -> None:
        """A leg has ended, well or not."""
        self.legs -= 1
        self.streams -= streamed

    async def meet(self, cluster: LiveCluster, timeout: float) -> None:
        """Asks the engine what it is, and checks that against the cluster.

        What it has told once must stay so, if the cluster does not say it: an engine that comes back may be another
        process.

        Args:
            cluster: what it must fit.
            timeout: s for each question.

        Raises:
            Unreachable: it does not answer, or says that it cannot now.
            Unfit: it serves another model, has another block size, or does not export a metric; names what.
        """
        mine = await self._own_entry(cluster.model, timeout)
        metrics = await self._asked("/metrics", timeout)
        try:
            reported(metrics)
            block_size, blocks = cache_size(metrics)
        except MissingMetric as error:
            raise Unfit(f"{self.name} ({self.client.url}/metrics): {error}") from None
        wanted = cluster.block_size or self.block_size
        if wanted not in (0, block_size):
            raise Unfit(f"{self.name} has KV blocks of {block_size} tokens; the cluster's have {wanted}")
        version = await self.client.fetch("GET", "/version", headers=b"", timeout=timeout)
        said = _json(version.body) if version.status == 200 else None
        self.version = version_of(said.get("version")) if isinstance(said, dict) else None
        self.block_size, self.blocks = block_size, blocks
        length = mine.get("max_model_len")
        self.max_model_len = length if type(length) is int and length > 0 else 0

    async def _own_entry(self, model: str, timeout: float) -> dict[str, Any]:
        """What it says of the model that it should serve."""
        said = _json(await self._asked("/v1/models", timeout))
        if not isinstance(said, dict) or not isinstance(said.get("data"), list):
            raise Unfit(f"{self.name} ({self.client.url}/v1/models) does not answer with a list of models")
        entries = [entry for entry in said["data"] if isinstance(entry, dict)]
        for entry in entries:
            if entry.get("id") == model:
                return entry
        names = ", ".join(str(entry.get("id"))[:100] for entry in entries[:10]) or "none"
        raise Unfit(f"{self.name} ({self.client.url}) serves {names}; the cluster's model is {model}")

    async def _asked(self, path: str, timeout: float) -> bytes:
        answer = await self.client.fetch("GET", path, headers=b"", timeout=timeout)
        if answer.status != 200:
            kind = Unreachable if answer.status >= 500 else Unfit  # It cannot now, or never.
            raise kind(f"{self.name} ({self.client.url}{path}) answers {answer.status}")
        return answer.body

    def spec(self, cluster: LiveCluster) -> EngineSpec:
        """What the router believes about it: the profile, with the sizes that it reports.

        Raises:
            ValueError: an unknown profile, or values that do not fit it.
        """
        changes = self.entry.overrides.model_dump(exclude_none=True)
        if self.blocks:
            changes = {key: value for key, value in changes.items() if key not in ("num_blocks", "kv_tokens")}
            changes |= {"num_blocks": self.blocks, "block_size": self.block_size}
        lengths = [length for length in (self.max_model_len, cluster.max_model_len) if length]
        if lengths:
            changes |= {"max_model_len": min(lengths)}
        return cluster.profile_of(self.entry).engine(**changes)

    async def ask_poll(self, timeout: float) -> Reported:
        """What it reports now.

        Raises:
            Unreachable: no answer in time, or it says that it cannot now.
            Unfit: it has no metrics.
            MissingMetric: a metric has gone.
        """
        return reported(await self._asked("/metrics", timeout))


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        return None


def check_alike(engines: Iterable[Engine]) -> None:
    """Engines of one cluster pass KV to each other: their blocks are of one size, their vLLM of one series.

    Those that have not said a size or a version yet are passed over, and so is the version of one that is ejected: it
    may return with another, but never with blocks of another size.

    Raises:
        Unfit: they differ; names an engine for each size or series.
    """
    engines = list(engines)
    sizes = {engine.block_size: engine for engine in engines if engine.block_size}
    if len(sizes) > 1:
        said = ", ".join(f"{engine.name} has {size}" for size, engine in sorted(sizes.items()))
        raise Unfit(f"the engines' KV blocks differ in size: {said} tokens; all of a cluster have the same")
    there = [engine for engine in engines if engine.health != "ejected"]
    series = {found: engine for engine in there if (found := series_of(engine.version))}
    if len(series) > 1:
        said = ", ".join(f"{engine.name} has {'.'.join(map(str, found))}" for found, engine in sorted(series.items()))
        raise Unfit(f"the engines' vLLM differ: {said}; all of a cluster have the same")


def series_of(version: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """What two versions share that may pass KV to each other: the major number, before 1.0 the minor one too."""
    if version is None:
        return None
    return version[:1] if version[0] else version[:2]


def engines_of(cluster: LiveCluster) -> list[Engine]:
    """The engines of a cluster, in its order, for somebody who asks them past any router; nobody has seen them yet."""
    return [
        Engine.of(role, cluster.engine_name(role, k), entry, faults=1, pause_s=1.0)
        for role, k, entry in cluster.engines()
    ]


async def meet_every(engines: list[Engine], cluster: LiveCluster, timeout: float) -> None:
    """Meets engines side by side, all of which must be there and fit each other.

    Args:
        engines: of the cluster.
        cluster: what they must fit.
        timeout: s for each question.

    Raises:
        Unfit: one is not what the cluster says, or they differ.
        Unreachable: some do not answer; names them.
    """
    problems = await meet_all(engines, cluster, timeout)
    unfit = next((problem for problem in problems if isinstance(problem, Unfit)), None)
    if unfit is not None:
        raise unfit
    away = [f"{engine.name}: {problem}" for engine, problem in zip(engines, problems, strict=True) if problem]
    if away:
        raise Unreachable(with_way_out(f"{cluster.name} is not up ({'; '.join(away)})", cluster))
    check_alike(engines)


async def meet_all(engines: list[Engine], cluster: LiveCluster, timeout: float) -> list[Unfit | Unreachable | None]:
    """Meets engines side by side; for each None, or what is wrong."""

    async def one(engine: Engine) -> Unfit | Unreachable | None:
        try:
            await engine.meet(cluster, timeout)
        except (Unfit, Unreachable) as error:
            return error
        return None

    return list(await asyncio.gather(*(one(engine) for engine in engines)))
