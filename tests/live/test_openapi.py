"""What the API says of itself holds, whatever is sent (schemathesis, against a server that runs)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from disaggroute.live.server import Doors, serve
from disaggroute.live.service import Service, ServiceOptions

from .proxy_client import QUICK, cluster_of
from .scripted_engine import ScriptedEngine

CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

EXAMPLES = settings(
    max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    """URLs of clients and operators of a router over scripted engines, in a thread of its own."""
    found: list[tuple[str, str]] = []
    ready, stops = threading.Event(), []

    async def main() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        engines = {name: await ScriptedEngine().__aenter__() for name in ("prefill/0", "decode/0", "decode/1")}
        options = ServiceOptions.model_validate({"policy": "round-robin", "watch": QUICK})
        service = Service(cluster_of(engines), options)

        def tell(clients: str, operators: str) -> None:
            found.append((clients, operators))
            ready.set()

        doors = Doors(port=0, admin_port=0, keys=["client"], admin_keys=["master"])
        try:
            await serve(service, doors, wait_s=10, ready=tell, stop=stop)
        finally:
            ready.set()
            for engine in engines.values():
                await engine.kill()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60) and found
    yield found[0]
    loop, stop = stops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert not thread.is_alive()


def checked(url: str, key: str) -> int:
    """Sends examples to every operation; how many operations there are."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        count += 1

        @EXAMPLES
        @given(operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=CHECKS)

        check()
    return count


def test_clients_get_what_the_description_says(served: tuple[str, str]) -> None:
    assert checked(served[0], "client") == 5


def test_operators_get_what_the_description_says(served: tuple[str, str]) -> None:
    # Engines that are added point anywhere: nothing is removed or added here but what answers with an error.
    assert checked(served[1], "master") == 10
