"""The router as a whole: engines, watch, ledger and policy, relay, records, metrics. No HTTP of its own."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from .. import __version__
from ..envs.cluster import Cluster
from ..envs.cluster_config import STRICT
from ..envs.router_constants import from_cluster
from ..policies.policy import Policy
from .clock import Clock
from .cluster_file import ROLES, EngineEntry, LiveCluster, Role
from .engine import Engine, Unfit, check_alike, meet_all
from .engine_watch import EngineWatch, WatchLimits
from .http_client import Unreachable
from .metrics import RouterMetrics
from .record_log import RecordLog
from .relay import Relay, RelayLimits
from .router import LiveRouter
from .running import with_way_out
from .story import Story
from .tokenizer import Tokenizer, make
from .twin import twin

log = logging.getLogger(__name__)

CUT_OFF_S = 2.0
"""Time for requests that are cut off to tell their clients and to be recorded."""


class ServiceOptions(BaseModel):
    """How a router behaves.

    Attributes:
        policy: name, parameters and file as on the command line.
        shadow: a second policy, which decides too and moves nothing.
        predictor: that learns output lengths: bucket, prompt-bucket or prompt-regression.
        seed: of what is random in a policy.
        decision_budget_s: a policy that takes longer is not followed.
        faults: of an engine in a row that open its breaker.
        pause_s: for which nothing is sent to it then.
        max_in_flight: requests; more are refused with 429.
        max_body_bytes: a longer request is refused with 413.
        drain_s: how long requests in flight may take to end at a shutdown.
        keep_prompts: whether records hold what clients wrote.
        watch: over the engines.
        relay: bounds of a request's way.
    """

    model_config = STRICT

    policy: str = "marginal-cost"
    shadow: str | None = None
    predictor: str = "bucket"
    seed: int = Field(0, ge=0, lt=1 << 63)
    decision_budget_s: float = Field(0.005, gt=0, le=60)
    faults: int = Field(3, ge=1, le=1_000_000)
    pause_s: float = Field(5.0, gt=0, le=3_600)
    max_in_flight: int = Field(4_096, ge=1, le=1_000_000)
    max_body_bytes: int = Field(32 << 20, ge=1_024, le=1 << 30)
    drain_s: float = Field(30.0, ge=0, le=86_400)
    keep_prompts: bool = False
    watch: WatchLimits = WatchLimits()
    relay: RelayLimits = RelayLimits()


class Conflict(ValueError):
    """What was asked for does not fit the present state."""


class Service:
    """One router.

    Args:
        cluster: its engines.
        options: how it behaves.
        records: file of the records; None keeps none.
        policy: decides in the place of the one that the options name.

    Raises:
        ValueError: an unknown profile, policy or predictor, or a policy that does not fit the pools.
        OSError: the file of the records cannot be written.
    """

    def __init__(
        self,
        cluster: LiveCluster,
        options: ServiceOptions,
        records: Path | None = None,
        *,
        policy: Policy | None = None,
    ) -> None:
        self.cluster, self.options = cluster, options
        self._policy = policy
        self.clock = Clock(cluster.time_scale)
        self.engines: list[Engine] = [
            self._engine(role, cluster.engine_name(role, index), entry) for role, index, entry in cluster.engines()
        ]
        """In the order of the router's instances."""
        self.in_flight = 0
        self.draining = False
        self.tokenizer: Tokenizer = make(cluster.tokenizer, self._tokenizing)
        self.metrics = RouterMetrics(self)
        self._records_path = records
        self.records = RecordLog(None, {})
        self.router = self._router()  # Refuses what could not run, before anything is started.
        self.relay: Relay
        self.watch = EngineWatch(cluster, self.clock, options.watch, self._polled, self._seen)
        self._flusher: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._changing = asyncio.Lock()
        """Held while engines are added or removed, one at a time."""

    def _router(self) -> LiveRouter:
        """A router of its engines, with nothing in flight."""
        cluster, options = self._simulated(), self.options
        return LiveRouter(
            cluster,
            from_cluster(cluster),
            self.cluster.targets,
            self._policy or options.policy,
            shadow=options.shadow,
            learns=options.predictor,
            budget_s=options.decision_budget_s,
            seed=options.seed,
        )

    def _engine(self, role: Role, name: str, entry: EngineEntry) -> Engine:
        return Engine.of(role, name, entry, faults=self.options.faults, pause_s=self.options.pause_s)

    def _simulated(self) -> Cluster:
        """The cluster as the router's ledger needs it."""
        return twin(self.cluster, self.engines)

    # --- life -----------------------------------------------------------------------------------------

    async def start(self, wait_s: float) -> None:
        """Meets the engines and begins to watch them.

        Args:
            wait_s: how long engines may take to answer; those that do not are ejected until they do.

        Raises:
            ValueError: an engine is not what the cluster says, or block sizes or versions differ.
            Unreachable: no engine of a pool answers in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        waiting = list(self.engines)
        while waiting:
            found = await meet_all(waiting, self.cluster, self.options.watch.silent_s)
            for engine, problem in zip(waiting, found, strict=True):
                if isinstance(problem, Unfit):
                    raise problem
                if problem is None:
                    engine.health, engine.reason = "up", ""
                else:
                    engine.reason = str(problem)
            waiting = [engine for engine in waiting if engine.health != "up"]
            if waiting and loop.time() >= deadline:
                break
            if waiting:
                await asyncio.sleep(0.2)
        self._check_pools()
        self.router = self._router()
        self.records = RecordLog(self._records_path, self._about())
        self.relay = Relay(
            self.router,
            self.engines,
            self.clock,
            self.options.relay,
            self.cluster.lease_s,
            self.records.write,
            self._ended,
            self._changed,
            self.options.keep_prompts,
        )
        for engine in self.engines:
            self._changed(engine)
            self.watch.watch(engine)
        self._flusher = asyncio.create_task(self._flush(), name="records")

    def _check_pools(self) -> None:
        """Every pool has an engine that is up, and all can pass KV to each other."""
        check_alike(self.engines)
        for role in ROLES:
            pool = [engine for engine in self.engines if engine.role == role]
            if pool and all(engine.health != "up" for engine in pool):
                reasons = "; ".join(f"{engine.name}: {engine.reason}" for engine in pool)
                raise Unreachable(with_way_out(f"no {role} engine answers ({reasons})", self.cluster))
        size = next(engine.block_size for engine in self.engines if engine.block_size)
        for engine in self.engines:  # Those that are away are believed to be alike.
            engine.block_size = engine.block_size or size

    def _about(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "started_at": self.clock.started_at,
            "started_ns": self.clock.started_ns,
            "time_scale": self.cluster.time_scale,
            "cluster": self.cluster.name,
            "model": self.cluster.model,
            "policy": self.router.policy,
            "shadow": self.options.shadow,
            "seed": self.options.seed,
            "engines": [{"name": e.name, "role": e.role, "url": e.client.url} for e in self.engines],
        }

    async def close(self) -> bool:
        """Refuses new requests, lets those in flight end, and closes everything; whether all ended in time."""
        self.draining = True
        try:
            async with asyncio.timeout(self.options.drain_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        ended = self.in_flight == 0
        if not ended:
            log.warning("%d requests in flight are cut off", self.in_flight)
        await self.watch.close()
        if hasattr(self, "relay"):
            self.relay.closing = True
            await self.relay.close()
        for engine in self.engines:
            await engine.client.close()
        if not ended:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CUT_OFF_S):
                    await self._idle.wait()
        if self._flusher is not None:
            self._flusher.cancel()
            with suppress(asyncio.CancelledError):
                await self._flusher
        if not self.records.close():
            log.error("%d records could not be written", self.records.waiting)
        return ended

    def cut_off(self) -> None:
        """Waits no longer for requests in flight."""
        self._idle.set()

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self.records.waiting:
                self.records.flush()

    # --- requests -------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A request has come in."""
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """It has left."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens that every engine takes; 0: nobody knows."""
        told = [engine.max_model_len for engine in self.engines]
        return min((length for length in (*told, self.cluster.max_model_len) if length), default=0)

    def _tokenizing(self) -> list[Engine]:
        up = [engine for engine in self.engines if engine.health == "up"]
        return sorted(up, key=lambda engine: engine.legs)

    def _ended(self, story: Story) -> None:
        self.metrics.ended(story)

    # --- engines --------------------------------------------------------------------------------------

    def _index(self, engine: Engine) -> int:
        return self.engines.index(engine)

    def _polled(self, engine: Engine) -> None:
        poll = engine.poll
        if poll is None or engine not in self.engines:
            return
        used = round(poll.usage * engine.blocks)
        self.router.state.polled(self._index(engine), used, poll.running, poll.waiting)
        times = [each.polled_at for each in self.engines if each.health == "up" and each.polled_at >= 0]
        if times:
            self.router.state.poll_time(min(times))

    def _seen(self, engine: Engine) -> None:
        """The watch has ejected an engine, or has let it return, perhaps as one of another size.

        Raises:
            Unfit: it cannot pass KV to the others, or they to it.
            ValueError: its size does not fit its profile.
        """
        if engine.health == "up" and engine in self.engines:
            check_alike(self.engines)
            believed = self.router.state.cluster.instances[self._index(engine)]
            now = engine.spec(self.cluster)
            if (now.num_blocks, now.max_model_len) != (believed.num_blocks, believed.max_model_len):
                self._resize(self.engines)
        self._changed(engine)

    def _changed(self, engine: Engine) -> None:
        """The router may or may not assign to an engine from now on."""
        if engine in self.engines:
            now = asyncio.get_running_loop().time()
            self.router.state.set_open(self._index(engine), engine.may_send(now))

    def engine(self, name: str) -> Engine:
        """The engine of a name.

        Raises:
            KeyError: there is none.
        """
        return next((engine for engine in self.engines if engine.name == name), None) or _missing(name)

    async def add(self, role: Role, entry: EngineEntry) -> Engine:
        """Adds an engine, which is met first.

        Raises:
            Conflict: the name or the address is taken, or the role does not fit the cluster.
            Unfit: it is not what the cluster says.
            Unreachable: it does not answer.
            ValueError: an unknown profile, or a policy that does not fit the larger pools.
        """
        async with self._changing:
            return await self._add(role, entry)

    async def _add(self, role: Role, entry: EngineEntry) -> Engine:
        pool = [engine for engine in self.engines if engine.role == role]
        free = (f"{role}/{k}" for k in range(len(self.engines) + 1) if not self._taken(f"{role}/{k}"))
        name = entry.name or next(free)
        if not pool:
            roles = " and ".join(sorted({each.role for each in self.engines}))
            raise Conflict(f"role is {role}; this cluster has {roles} engines")
        if self._taken(name):
            raise Conflict(f"name is {name}, which is taken")
        for engine in self.engines:
            if engine.entry.address == entry.address:
                raise Conflict(f"url is {entry.url}, the address of {engine.name}")
        engine = self._engine(role, name, entry)
        await engine.meet(self.cluster, self.options.watch.silent_s)
        check_alike([*self.engines, engine])
        at = self._index(pool[-1]) + 1
        self._resize([*self.engines[:at], engine, *self.engines[at:]])
        engine.health, engine.reason = "up", ""
        self._changed(engine)
        self.watch.watch(engine)
        return engine

    def _taken(self, name: str) -> bool:
        return any(engine.name == name for engine in self.engines)

    def drain(self, engine: Engine, draining: bool = True) -> None:
        """Sends nothing new to an engine, or does so again."""
        engine.draining = draining
        self._changed(engine)

    async def remove(self, engine: Engine, force: bool = False) -> None:
        """Forgets an engine.

        Args:
            engine: which.
            force: legs that are in flight there fail, and are tried elsewhere where nothing of them is out.

        Raises:
            Conflict: it is the last of its pool, has legs in flight, or is removed already.
            ValueError: a policy that does not fit the smaller pools; the engine stays.
        """
        async with self._changing:
            if engine not in self.engines:
                raise Conflict(f"{engine.name} is removed already")
            pool = [each for each in self.engines if each.role == engine.role]
            if len(pool) == 1:
                raise Conflict(f"{engine.name} is the last {engine.role} engine; a pool has at least one")
            if engine.legs and not force:
                raise Conflict(f"{engine.name} has {engine.legs} legs in flight; drain it first, or use force")
            self._resize([each for each in self.engines if each is not engine])
            engine.health, engine.reason = "ejected", "removed"
            await self.watch.forget(engine)
            await engine.client.close()

    def _resize(self, engines: list[Engine]) -> None:
        """Gives the router other instances; requests in flight stay."""
        before = self.engines
        old = list(before)
        self.engines = engines
        try:
            cluster = self._simulated()
            mapping = {k: engines.index(engine) for k, engine in enumerate(old) if engine in engines}
            self.router.resize(cluster, from_cluster(cluster), mapping)
        except Exception:
            self.engines = old
            raise
        self.relay.engines = engines
        for engine in engines:
            self._changed(engine)


def _missing(name: str) -> Engine:
    raise KeyError(name)
