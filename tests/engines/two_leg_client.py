"""A plain client of the two-leg protocol: what the router does, without its care, to see what engines do."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from disaggroute.live.engines.tiny_model import BYTE_OFFSET

LIMIT_S = 120.0
"""Longest wait for anything: far above what it takes on a busy machine."""

Body = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Server(Protocol):
    """An engine, or the router, which is asked like one."""

    @property
    def url(self) -> str:
        """Where it is."""

    @property
    def name(self) -> str:
        """The model that it serves."""


@dataclass
class Answer:
    """What came back, whether streamed or not."""

    status: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    usage: Body = field(default_factory=dict)
    parameters: Body | None = None
    error: Body | None = None
    finish_reason: str | None = None
    done: bool = False

    @property
    def refused(self) -> bool:
        """Whether it says that it is no whole answer: by its status, an error event, or a stream that breaks off."""
        return self.status != 200 or self.error is not None


class Client:
    """Sends requests to engines."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(self, engine: Server, body: Body, path: str = COMPLETIONS) -> Answer:
        """One request to one engine, read to its end."""
        async with self.post(engine, body, path) as response:
            if response.content_type == "text/event-stream":
                answer = Answer(response.status)
                async for event in events(response):
                    take(answer, event)
                return answer
            return whole(response.status, await response.json())

    def post(self, engine: Server, body: Body, path: str = COMPLETIONS) -> Any:
        """One request to one engine, as a block in which the answer is read."""
        whole_body = {"model": engine.name, "temperature": 0, "return_token_ids": True} | body
        headers = {"x-request-id": whole_body.pop("id")} if "id" in whole_body else {}
        return self.session.post(engine.url + path, json=whole_body, headers=headers)

    async def prefill_leg(self, engine: Server, body: Body, path: str = COMPLETIONS) -> Body:
        """The first leg; returns the parameters for the second."""
        asked = {key: value for key, value in body.items() if key not in ("stream", "stream_options", "min_tokens")}
        asked |= {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        answer = await self.ask(engine, asked, path)
        assert answer.status == 200 and answer.parameters is not None, answer
        return answer.parameters

    async def two_legs(
        self, prefill: Server, decode: Server, body: Body, path: str = COMPLETIONS
    ) -> Answer:
        """Both legs."""
        parameters = await self.prefill_leg(prefill, body, path)
        return await self.ask(decode, body | {"kv_transfer_params": parameters}, path)

    async def metric(self, engine: Server, name: str, **labels: str) -> float:
        """The value of one series; fails when there is none or more than one."""
        async with self.session.get(f"{engine.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(f"vllm:{name}{{") and all(text in line for text in wanted)
        ]
        assert len(found) == 1, f"{len(found)} series of vllm:{name}"
        return found[0]

    async def expired(self, prefill: Server) -> float:
        """Prompts whose lease has ended on a prefill engine before anybody came for them."""
        await self._told(prefill)
        return await self.metric(prefill, "nixl_num_kv_expired_reqs_total")

    async def pulled_late(self, prefill: Server) -> float:
        """Pulls from a prefill engine after the lease."""
        await self._told(prefill)
        return await self.metric(prefill, "nixl_num_notifications_after_expiry_total")

    async def _told(self, engine: Server) -> None:
        """Has an engine tell what NIXL has counted, which it does only with an answer."""
        for _ in range(2):
            await self.ask(engine, {"prompt": [BYTE_OFFSET], "max_tokens": 1})

    async def blocks_free(self, engine: Server) -> bool:
        """Whether no KV block of an engine is in use."""
        return await self.metric(engine, "kv_cache_usage_perc") == 0

    async def running(self, engine: Server) -> float:
        """Requests that an engine computes."""
        return await self.metric(engine, "num_requests_running")


def run(test: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Runs a test with a client."""

    async def main() -> None:
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        # Connections are not kept: an engine that was started anew may use the port of one that was killed.
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as session:
            await test(Client(session))

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits for a condition; fails at the limit."""
    end = time.monotonic() + LIMIT_S
    while not await condition():
        assert time.monotonic() < end, f"{what}: not within {LIMIT_S:g} s"
        await asyncio.sleep(0.1)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Body | None]:
    """The events of a stream as JSON; None for the mark of its end."""
    async for line in response.content:
        if line.startswith(b"data: "):
            text = line[len(b"data: ") :].strip()
            yield None if text == b"[DONE]" else json.loads(text)


def take(answer: Answer, event: Body | None) -> None:
    """Adds an event to an answer."""
    if event is None:
        answer.done = True
    elif "error" in event:
        answer.error = event["error"]
    else:
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            answer.tokens += choice.get("token_ids") or []
            answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason


def whole(status: int, body: Body) -> Answer:
    """An answer that was not streamed."""
    if "error" in body:
        return Answer(status, error=body["error"])
    (choice,) = body["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return Answer(
        status,
        tokens=choice["token_ids"],
        text=text,
        usage=body["usage"],
        parameters=body.get("kv_transfer_params"),
        finish_reason=choice["finish_reason"],
    )


@asynccontextmanager
async def first_token(client: Client, engine: Server, body: Body) -> AsyncIterator[AsyncIterator[Body | None]]:
    """A stream of which the first token has come; leaving the block breaks the connection."""
    async with client.post(engine, body | {"stream": True}) as response:
        stream = events(response)
        event = await anext(stream)
        assert event is not None and event["choices"], event
        yield stream
        response.close()


_random = random.Random(0)


def new_prompt(length: int) -> list[int]:
    """A prompt that was not used before, so that no engine has it in its prefix cache. Printable characters."""
    return [BYTE_OFFSET + _random.randrange(ord(" "), ord("~") + 1) for _ in range(length)]
