"""Emulated engines for tests, and a small client of the two legs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from disaggroute.live.emulator.emulated_engine import EmulatedEngine
from disaggroute.live.emulator.options import EngineOptions

LIMIT_S = 60
"""Wall seconds after which a test has failed: far more than any of them needs."""

FAST = 0.05
"""A time scale with which a decode step lasts less than a millisecond."""

Json = dict[str, Any]


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a test."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(limited())


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Waits until something is so."""
    while not await true():
        await asyncio.sleep(0.01)


def options(role: str, **changes: Any) -> EngineOptions:
    """Options of an engine with the A40 profile, faster than life; its leases last half a minute of life."""
    given = {"profile": "a40-qwen2.5-3b", "role": role, "model": "tiny", "time_scale": FAST}
    overrides = {"lease_s": 30 / FAST} | changes.pop("overrides", {})
    return EngineOptions.model_validate({**given, "overrides": overrides, **changes})


@dataclass
class Answer:
    """What came back.

    Attributes:
        status: of HTTP.
        headers: by lower-case name.
        body: of an answer that is no stream.
        events: objects of a stream, `[DONE]` left out.
        done: whether the stream ended with `[DONE]`.
    """

    status: int
    headers: dict[str, str]
    body: Json = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    done: bool = False

    @property
    def text(self) -> str:
        """The text of the answer, of a completion or a chat."""
        if self.body:
            choice = self.body["choices"][0]
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        parts = [choice for event in self.events for choice in event.get("choices", [])]
        return "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts)

    @property
    def error(self) -> Json:
        """The error in it."""
        found = self.body.get("error") or next(e["error"] for e in self.events if "error" in e)
        assert isinstance(found, dict)
        return found


class Client:
    """A client of one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        """POST; a stream is read to its end."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return await self._read(response)

    async def get(self, path: str) -> Answer:
        """GET."""
        async with self.session.get(self.url + path) as response:
            return await self._read(response)

    async def delete(self, path: str) -> Answer:
        """DELETE."""
        async with self.session.delete(self.url + path) as response:
            return await self._read(response)

    async def complete(self, prompt: str | list[int], tokens: int, *, request_id: str = "", **more: Any) -> Answer:
        """A completion of exactly so many tokens."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, **more}
        headers = {"X-Request-Id": request_id} if request_id else {}
        return await self.post("/v1/completions", body, **headers)

    async def metrics(self) -> dict[str, float]:
        """Metrics by name, the labels engine and model_name left out."""
        async with self.session.get(self.url + "/metrics") as response:
            assert response.status == 200
            text = await response.text()
        found: dict[str, float] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                for label in ('engine="0"', ',model_name="tiny"'):
                    name = name.replace(label, "")
                found[name.replace("{,", "{").replace("{}", "")] = float(value)
        return found

    async def metric(self, name: str) -> float:
        """One metric, `vllm:` left out."""
        return (await self.metrics())[f"vllm:{name}"]

    async def fault(self, kind: str, **fields: Any) -> Answer:
        """Sets a fault."""
        return await self.post("/emulator/faults", {"kind": kind, **fields})

    @staticmethod
    async def _read(response: aiohttp.ClientResponse) -> Answer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = Answer(response.status, headers)
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raw = await response.read()
            if headers.get("content-type") == "application/json":
                answer.body = json.loads(raw)
            return answer
        async for line in response.content:
            if line.startswith(b"data: [DONE]"):
                answer.done = True
            elif line.startswith(b"data: "):
                answer.events.append(json.loads(line[6:]))
        return answer


@asynccontextmanager
async def serving(*engines: EngineOptions) -> AsyncIterator[tuple[list[EmulatedEngine], list[Client]]]:
    """Engines that run, and a client for each."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        running = [await stack.enter_async_context(EmulatedEngine(given)) for given in engines]
        yield running, [Client(session, engine.url) for engine in running]


async def prefill(client: Client, prompt: str | list[int], *, request_id: str = "", **more: Any) -> Json:
    """The `kv_transfer_params` of a prefill leg."""
    leg = {"kv_transfer_params": {"do_remote_decode": True}, **more}
    answer = await client.complete(prompt, 1, request_id=request_id, **leg)
    assert answer.status == 200, answer.body
    parameters = answer.body["kv_transfer_params"]
    assert isinstance(parameters, dict)
    return parameters


async def two_legs(first: Client, second: Client, prompt: str | list[int], tokens: int, **more: Any) -> Answer:
    """A request in two legs."""
    parameters = await prefill(first, prompt)
    return await second.complete(prompt, tokens, kv_transfer_params=parameters, **more)
