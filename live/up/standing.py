"""How the engines of a cluster stand: which run, which answer, and what they are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import orjson

from ..cluster_file import LiveCluster, Role
from ..http_client import HttpClient, Unreachable
from ..launch_file import LaunchFile
from .state import StateFolder, definition, started

ASK_S = 5.0
"""For an engine's answer."""


@dataclass(frozen=True)
class EngineStanding:
    """One engine.

    Attributes:
        name: of it.
        role: of it.
        url: where it is.
        healthy: whether /health answers 200.
        version: of vLLM; empty where it does not say.
        here: whether `live up` has started it; what follows is known only then.
        pid: of its first process; None: that has ended.
        since: when that started, as a Unix time, s.
        log: name of the file of what it has said.
    """

    name: str
    role: Role
    url: str
    healthy: bool
    version: str
    here: bool = False
    pid: int | None = None
    since: float | None = None
    log: str = ""

    @property
    def well(self) -> bool:
        """Whether it runs and answers."""
        return self.healthy and (self.pid is not None or not self.here)


@dataclass(frozen=True)
class Standing:
    """A cluster.

    Attributes:
        name: of it.
        engines: all of them; none where it is not up.
        folder: where its state is; None where `live up` does not start it.
        complaint: what is not well with all of it; empty if nothing is.
        way_out: what to do about engines that have ended; empty if none have.
    """

    name: str
    engines: list[EngineStanding]
    folder: str | None = None
    complaint: str = ""
    way_out: str = ""

    @property
    def well(self) -> bool:
        """Whether every engine is."""
        return not self.complaint and all(engine.well for engine in self.engines)


def standing(cluster: LiveCluster | LaunchFile) -> Standing:
    """How a cluster stands.

    Raises:
        ValueError: its state is unreadable.
    """
    if isinstance(cluster, LiveCluster):
        return Standing(cluster.name, asyncio.run(_ask(cluster)))
    found = standing_of(cluster.name)
    state = StateFolder(cluster.name).read()
    if state is not None and state.definition != definition(cluster):
        complaint = f"{state.source} has changed since `live up`; run `disaggroute live down {state.source}` first"
        return Standing(found.name, found.engines, found.folder, complaint)
    return found


def standing_of(name: str) -> Standing:
    """How the engines stand that `live up` has started for the cluster of a name.

    Raises:
        ValueError: its state is unreadable.
    """
    folder = StateFolder(name)
    state = folder.read()
    if state is None:
        return Standing(name, [], complaint=f"{name} is not up; `disaggroute live up` starts it")
    answers = asyncio.run(_ask(folder.cluster(state)))
    engines = []
    for engine, answer in zip(state.engines, answers, strict=True):
        process = folder.first_process(engine)
        pid, since = (process.pid, process.since) if process else (None, None)
        engines.append(replace(answer, here=True, pid=pid, since=since, log=folder.log(engine).name))
    way_out = state.way_out([engine.name for engine in engines if engine.pid is None])
    return Standing(name, engines, str(folder.path), way_out=way_out)


def standings() -> list[Standing]:
    """How all clusters stand that are up, or were when something broke off."""
    found = []
    for name in started():
        try:
            found.append(standing_of(name))
        except ValueError as error:  # One that is unreadable hides no other.
            found.append(Standing(name, [], str(StateFolder(name).path), str(error)))
    return found


async def _ask(cluster: LiveCluster) -> list[EngineStanding]:
    async def one(name: str, role: Role, url: str) -> EngineStanding:
        client = HttpClient(url)
        try:
            health = await client.fetch("GET", "/health", headers=b"", timeout=ASK_S)
            version = await client.fetch("GET", "/version", headers=b"", timeout=ASK_S)
            return EngineStanding(name, role, url, health.status == 200, _version(version.body))
        except Unreachable:
            return EngineStanding(name, role, url, False, "")
        finally:
            await client.close()

    engines = ((cluster.engine_name(role, k), role, entry.url) for role, k, entry in cluster.engines())
    return list(await asyncio.gather(*(one(*engine) for engine in engines)))


def _version(body: bytes) -> str:
    try:
        said = orjson.loads(body)
    except ValueError:
        return ""
    version = said.get("version") if isinstance(said, dict) else None
    return version[:40] if isinstance(version, str) and version.isprintable() else ""
