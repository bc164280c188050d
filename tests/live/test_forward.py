"""A body that is forwarded to a function as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from disaggroute.live.http_client import HttpClient, Response, Unreachable

from .scripted_engine import STREAM, Act, ScriptedEngine, Writer, chunk, stream


def run(act: Act, test: Callable[[ScriptedEngine, HttpClient, Response], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with ScriptedEngine() as engine:
            engine.acts = [act]
            client = HttpClient(engine.url)
            response = await client.open("POST", "/v1/completions", json.dumps({}).encode())
            await test(engine, client, response)
            await client.close()

    asyncio.run(main())


def test_all_pieces_come_in_order_and_the_last_is_marked() -> None:
    async def test(engine: ScriptedEngine, client: HttpClient, response: Response) -> None:
        taken: list[tuple[bytes, bool]] = []

        def sink(data: bytes, last: bool) -> bool:
            taken.append((data, last))
            return True

        await response.forward(sink)
        assert b"".join(data for data, _ in taken) == b"onetwothree"
        assert [last for _, last in taken] == [False] * (len(taken) - 1) + [True] and client.connections == 1

    run(stream(b"one", b"two", b"three"), test)


def test_what_the_function_raises_comes_out_and_closes_the_connection() -> None:
    async def test(engine: ScriptedEngine, client: HttpClient, response: Response) -> None:
        def sink(data: bytes, last: bool) -> bool:
            raise ValueError("no more of this")

        with pytest.raises(ValueError, match="no more of this"):
            await response.forward(sink)
        await asyncio.wait_for(engine.aborted.wait(), 10)

    run(stream(b"one", then="hang"), test)


def test_a_function_that_may_abort_the_answer() -> None:
    async def test(engine: ScriptedEngine, client: HttpClient, response: Response) -> None:
        def sink(data: bytes, last: bool) -> bool:
            response.abort()
            return False

        with pytest.raises(Unreachable, match="aborted"):
            await response.forward(sink)
        await asyncio.wait_for(engine.aborted.wait(), 10)

    run(stream(b"one", then="hang"), test)


def test_a_lost_connection_is_told_after_what_had_come() -> None:
    async def test(engine: ScriptedEngine, client: HttpClient, response: Response) -> None:
        taken: list[bytes] = []

        def sink(data: bytes, last: bool) -> bool:
            taken.append(data)
            return not last

        with pytest.raises(Unreachable, match="the connection was lost"):
            await response.forward(sink)
        assert taken == [b"one"]

    run(stream(b"one", then="drop"), test)


def test_an_engine_waits_while_no_more_is_wanted() -> None:
    count, sent = 300, 0

    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        nonlocal sent
        writer.write(STREAM)
        for _ in range(count):
            writer.write(chunk(b"x" * 100_000))
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")

    async def test(engine: ScriptedEngine, client: HttpClient, response: Response) -> None:
        wanted, size = False, 0

        def sink(data: bytes, last: bool) -> bool:
            nonlocal size
            size += len(data)
            return wanted

        forwarding = asyncio.create_task(response.forward(sink))
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < count
        wanted = True
        response.resume()
        await asyncio.wait_for(forwarding, 30)
        assert size == count * 100_000

    run(act, test)
