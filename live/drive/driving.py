"""One attempt at a run: quiet engines, a fresh router, every request at its time, and what came of them on the disk."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from ...envs import catalog
from ...envs.backend import Say
from ...envs.cluster_config import STRICT
from ..cluster_file import LiveCluster
from ..http_client import Unreachable
from ..record_log import RecordLog
from ..running import with_way_out
from ..server import quick_collections
from ..service import ServiceOptions
from .alone import alone
from .attempt import ENDED, Attempt
from .load import Load
from .plan import Plan
from .quiet import quieten
from .router_process import Ejected, RouterProcess

LOOK_S = 1.0
"""Wall time between looks at the router and its engines."""

TELL_S = 15.0
"""Wall time between lines about how far a run is: it lasts until the longest of its answers has ended."""


class DriveOptions(BaseModel):
    """How runs are driven.

    Attributes:
        reset: whether an engine whose prefix cache cannot be reset is an error.
        on_engine_loss: whether a run goes on when the router ejects an engine, or stops.
        idle_s: wall time that engines may take to become idle before a run.
        timeout_s: a request that takes longer has failed, s of the engines.
        drain_s: time for requests under way after the last one was sent, s of the engines.
        router: options of the routers, as in the file of `live serve --options` (docs/live.md).
    """

    model_config = STRICT

    reset: bool = True
    on_engine_loss: Literal["go-on", "stop"] = "go-on"
    idle_s: float = Field(90.0, gt=0, le=86_400)
    timeout_s: float = Field(600.0, gt=0, le=86_400)
    drain_s: float = Field(300.0, gt=0, le=86_400)
    router: dict[str, Any] = {}

    @field_validator("router")
    @classmethod
    def _of_a_router(cls, options: dict[str, Any]) -> dict[str, Any]:
        of_the_run = sorted({"policy", "seed", "predictor"} & options.keys())
        if of_the_run:
            raise ValueError(f"{of_the_run[0]} is given; the run says it, leave it out")
        catalog.validate(ServiceOptions, options, "router")
        return options


class EngineLost(RuntimeError):
    """An engine was ejected in a run that was to stop then."""


@dataclass(frozen=True)
class Wanted:
    """What a run is.

    Attributes:
        cluster: its engines.
        policy: text of the policy.
        seed: of what is random in it.
        learns: predictor that learns output lengths in the router.
        plan: what is sent.
        about: what the first line of the client's file says.
    """

    cluster: LiveCluster
    policy: str
    seed: int
    learns: str
    plan: Plan
    about: dict[str, Any]


async def drive(wanted: Wanted, options: DriveOptions, attempt: Attempt, say: Say) -> None:
    """Makes an attempt.

    Raises:
        RuntimeError: another run is on the engines, they are not idle, a cache cannot be reset, an engine was lost, or
            the router ended.
        OSError: an engine does not answer, or files cannot be written.
        MissingMetric: an engine does not say what it does.
    """
    _allow_files()
    cluster = wanted.cluster
    engines = [(cluster.engine_name(role, k), entry.url) for role, k, entry in cluster.engines()]
    with alone(engines):
        try:
            await quieten(engines, idle_s=options.idle_s, reset=options.reset, say=say)
        except Unreachable as error:
            raise Unreachable(with_way_out(str(error), cluster)) from None
        await _drive(wanted, options, attempt, say)


async def _drive(wanted: Wanted, options: DriveOptions, attempt: Attempt, say: Say) -> None:
    cluster = wanted.cluster
    async with RouterProcess(
        cluster, wanted.policy, wanted.seed, wanted.learns, attempt, options.router
    ) as router:
        load = Load(router.url, wanted.plan, cluster.time_scale, options.timeout_s, lambda seen: log.write(seen.line()))
        await load.warm()
        with quick_collections():
            log = RecordLog(attempt.client, {**wanted.about, "origin_ns": load.start()})
            try:
                ejected = await _guarded(load, router, options, log, say)
                end = {ENDED: True, "requests": load.ended, "ejected": [vars(each) for each in ejected]}
                log.write(end)
            finally:
                await load.close()
                written = log.close()
            if not written:
                raise RuntimeError(f"cannot write {attempt.client}: {log.problem.lower()}; make room and start again")


async def _guarded(
    load: Load, router: RouterProcess, options: DriveOptions, log: RecordLog, say: Say
) -> list[Ejected]:
    """Sends and drains under a watch; returns the engines that were ejected."""
    ejected: dict[str, Ejected] = {}

    async def send() -> None:
        await load.send()
        given_up = await load.drain(options.drain_s)
        if given_up:
            say(f"warning: {given_up} requests had not ended {options.drain_s:g} s after the last was sent: failed")

    async def look() -> None:
        router.check()
        for each in await router.ejected():
            known = ejected.get(each.name)
            if known is None or known.times != each.times:
                say(f"warning: {each.name} was ejected: {each.reason or 'it has returned'}")
                ejected[each.name] = each
                if options.on_engine_loss == "stop":
                    raise EngineLost(f"{each.name} was ejected in the middle of the run ({each.reason}), which ends it")

    loop = asyncio.get_running_loop()
    told = loop.time()
    sending = asyncio.create_task(send())
    try:
        while not sending.done():
            await asyncio.wait([sending], timeout=LOOK_S)
            log.flush()
            if loop.time() - told >= TELL_S and not sending.done():
                told = loop.time()
                say(f"{load.sent} of {len(load.plan)} requests sent, {load.sent - load.ended} under way")
            with suppress(Unreachable):  # It may be busy; whether it is dead is looked at each time.
                await look()
        await sending
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await sending
    return list(ejected.values())


def _allow_files() -> None:
    """As many open connections as the system allows: an overloaded cluster has thousands of requests in flight."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
