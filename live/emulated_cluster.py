"""A cluster of emulated engines on this machine: one process each, which dies with this one."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..envs import catalog, profiles
from ..envs.cluster_config import ClusterConfig, from_topology
from .cluster_file import LiveCluster
from .compilation import compile_engine
from .emulator.command_line import command_line
from .emulator.options import EngineOptions
from .file_name import file_name

READY = re.compile(r"emulated \w+ engine of .* at (http://\S+?)(?:,|$)")

START_S = 120.0
"""Seconds within which engines must be ready; the first start of a version compiles the engine model."""


@dataclass
class EmulatedProcess:
    """One engine's process.

    Attributes:
        role: prefill, decode or mixed.
        name: role/index.
        process: the process.
        arguments: the words that start it; another port than 0 once it has one.
        log: its output so far.
        url: where it listens, once it does.
    """

    role: str
    name: str
    process: subprocess.Popen[str]
    arguments: list[str]
    log: list[str]
    url: str = ""

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return "; ".join(line.strip() for line in self.log[-30:]) or "it said nothing"


class EmulatedCluster:
    """Starts engines, and ends them when the context is left.

    Args:
        topology: counts and roles, such as 2P4D or 4M.
        profile: name or path of their profile.
        model: name under which they serve it; by default the profile's.
        time_scale: wall seconds of an engine second.
        kv_tokens: tokens of an engine's KV cache; by default the profile's.
        lease_s: engine seconds for which KV is held.
        hazards: whether malformed decode legs do the harm that they do to vLLM.
        extra: further arguments of `disaggroute live engine`.

    Raises:
        ValueError: a bad topology, an unknown profile, or a value out of range.
    """

    def __init__(
        self,
        topology: str,
        profile: str,
        *,
        model: str | None = None,
        time_scale: float = 1.0,
        kv_tokens: int | None = None,
        lease_s: float | None = None,
        hazards: bool = True,
        extra: tuple[str, ...] = (),
    ) -> None:
        self.config: ClusterConfig = from_topology(topology, profile)
        self.profile, self.model = profile, model or profiles.load(profile).model
        self.time_scale, self.lease_s = time_scale, lease_s
        self._shared: dict[str, Any] = {"profile": profile, "model": self.model, "time_scale": time_scale}
        self._shared |= {"overrides": {"kv_tokens": kv_tokens, "lease_s": lease_s}, "hazards": hazards}
        self._extra = extra
        self.engines: list[EmulatedProcess] = []

    def __enter__(self) -> EmulatedCluster:
        """Starts all engines and waits until they listen.

        Raises:
            RuntimeError: one died or was not ready in time; says its last words.
        """
        compile_engine()  # Compiled once, and not by every engine.
        try:
            for name in self.config.instance_names():
                role = name.partition("/")[0]
                options = catalog.validate(EngineOptions, {"role": role, **self._shared}, name)
                self.engines.append(self._start(role, name, [*command_line(options), *self._extra]))
            for engine in self.engines:
                self._wait(engine)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends them."""
        for engine in self.engines:
            engine.process.terminate()
        for engine in self.engines:
            try:
                engine.process.wait(10)
            except subprocess.TimeoutExpired:
                engine.process.kill()
                engine.process.wait()

    def cluster(self, **fields: Any) -> LiveCluster:
        """The cluster as a router takes it; `fields` replace some of it."""
        pools: dict[str, list[dict[str, Any]]] = {}
        for engine in self.engines:
            pools.setdefault(engine.role, []).append({"url": engine.url, "name": engine.name})
        lease = {} if self.lease_s is None else {"lease_s": max(self.lease_s, 1.0)}
        base: dict[str, Any] = {"name": self.config.name, "model": self.model, "tokenizer": "engine"}
        base |= {"profile": self.profile, "time_scale": self.time_scale}
        return LiveCluster.load({**base, **lease, **pools, **fields})

    def kill(self, name: str) -> None:
        """Kills an engine as a crash would."""
        engine = self._named(name)
        engine.process.kill()
        engine.process.wait()

    def restart(self, name: str) -> None:
        """Starts an engine anew where it was.

        Raises:
            RuntimeError: as on entering.
        """
        old = self._named(name)
        engine = self._start(old.role, old.name, old.arguments)
        self.engines[self.engines.index(old)] = engine
        self._wait(engine)

    def _named(self, name: str) -> EmulatedProcess:
        return next(engine for engine in self.engines if engine.name == name)

    def _start(self, role: str, name: str, arguments: list[str]) -> EmulatedProcess:
        process = subprocess.Popen(
            [*arguments, "--with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for the router, which ends them when it has drained.
        )
        engine = EmulatedProcess(role, name, process, arguments, [])
        threading.Thread(target=_listen, args=(engine,), daemon=True).start()
        return engine

    def _wait(self, engine: EmulatedProcess) -> None:
        deadline = time.monotonic() + START_S
        while not engine.url:
            if engine.process.poll() is not None:
                time.sleep(0.05)  # for the rest of its log
                raise RuntimeError(f"the emulated engine {engine.name} ended at its start: {engine.last_words}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the emulated engine {engine.name} was not ready within {START_S:g} s")
            time.sleep(0.005)
        port = engine.url.rpartition(":")[2]
        engine.arguments[engine.arguments.index("--port") + 1] = port


def _listen(engine: EmulatedProcess) -> None:
    """Reads what an engine says."""
    assert engine.process.stdout is not None
    with contextlib.suppress(ValueError):
        for line in engine.process.stdout:
            engine.log.append(line)
            del engine.log[:-200]
            found = READY.search(line)
            if found and not engine.url:
                engine.url = found[1]


@contextlib.contextmanager
def emulated(topology: str, profile: str, **options: Any) -> Iterator[tuple[EmulatedCluster, LiveCluster]]:
    """Engines that run, and the cluster that they are."""
    with EmulatedCluster(topology, profile, **options) as engines:
        yield engines, engines.cluster()


def default_records(folder: Path, name: str) -> Path:
    """A file for the records of a router, by cluster and time of its start."""
    return folder / f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
