"""One prefill and two decode engines for all tests.

Those that a test has killed start again while the next tests run, and are waited for when a test needs them: `cluster`
is all three, `pair` the prefill and the second decode engine. To start one takes most of a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from disaggroute.live.engines.installation import engine_python
from disaggroute.live.engines.launcher import EngineOptions, RealEngine, start_all
from disaggroute.live.engines.tiny_model import make_tiny_model

from .processes import until_gone

LEASE_S = 15

START_S = 600.0
"""Within which engines must be ready; half a minute to a minute where nothing else runs."""


@dataclass(frozen=True)
class Cluster:
    """The engines of a test; of two decode engines the second prefills itself what it cannot pull."""

    prefill: RealEngine
    decodes: tuple[RealEngine, ...]

    @property
    def engines(self) -> list[RealEngine]:
        return [self.prefill, *self.decodes]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The engines of `test_cpu_smoke` end before those of all other tests start: six want much memory."""
    items.sort(key=lambda item: item.path.name != "test_cpu_smoke.py")


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return engine_python()
    except ValueError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def started(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("engines")
    fails = EngineOptions(lease_s=LEASE_S)
    recomputes = EngineOptions(lease_s=LEASE_S, kv_load_failure_policy="recompute")
    cluster = Cluster(
        RealEngine("prefill", model, python, logs / "prefill.log", options=fails),
        (
            RealEngine("decode", model, python, logs / "decode-0.log", options=fails),
            RealEngine("decode", model, python, logs / "decode-1.log", options=recomputes),
        ),
    )
    try:
        start_all(cluster.engines, START_S)
        yield cluster
        for engine in cluster.engines:
            engine.stop()
        for engine in cluster.engines:
            until_gone(engine.pid)
    finally:
        for engine in cluster.engines:
            engine.kill()


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    yield ready(started)
    start_again(started)


@pytest.fixture
def pair(started: Cluster) -> Iterator[Cluster]:
    yield ready(Cluster(started.prefill, started.decodes[1:]))
    start_again(started)


STARTING: set[RealEngine] = set()
"""Engines that were started and not waited for yet."""


def ready(cluster: Cluster) -> Cluster:
    """Waits for engines."""
    for engine in cluster.engines:
        engine.wait_ready(START_S)
        STARTING.discard(engine)
    return cluster


def start_again(cluster: Cluster) -> None:
    """Starts the engines that have died, and does not wait for them."""
    for engine in cluster.engines:
        if engine not in STARTING and not engine.healthy():
            engine.kill()
            engine.start()
            STARTING.add(engine)
