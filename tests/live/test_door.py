"""The clients' door over real sockets: what is served there, what uvicorn serves, and how connections end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.server import ServerState

from disaggroute.live import server
from disaggroute.live.door import Door

from .proxy_client import Setup, routed, until
from .scripted_engine import STREAM, Reader, ScriptedEngine, Writer, chunk, event, hang, piece, stream

PLAIN = {"model": "tiny", "prompt": [1, 2, 3, 4, 5], "max_tokens": 4}
STREAMED = PLAIN | {"stream": True}
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}})
DONE = event("[DONE]")


class Client:
    """A connection that says bytes."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    def ask(self, body: Any, path: str = "/v1/completions", **headers: str) -> None:
        self.say(request(body, path, **headers))

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:] if line)

    async def chunk(self) -> bytes:
        """The next piece of a streamed answer; empty at its end."""
        size = int(await asyncio.wait_for(self.reader.readline(), 10), 16)
        return (await asyncio.wait_for(self.reader.readexactly(size + 2), 10))[:-2]

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer, whole."""
        status, headers = await self.head()
        if "content-length" in headers:
            length = int(headers["content-length"])
            return status, headers, await asyncio.wait_for(self.reader.readexactly(length), 10)
        body = b""
        while data := await self.chunk():
            body += data
        return status, headers, body

    async def closed(self) -> bool:
        """Whether nothing more comes."""
        return await asyncio.wait_for(self.reader.read(), 10) == b""


def request(body: Any, path: str = "/v1/completions", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "test", "content-length": str(len(data))} | {k.replace("_", "-"): v for k, v in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


Test = Callable[[Setup, Callable[[], Coroutine[Any, Any, Client]]], Coroutine[Any, Any, None]]


@asynccontextmanager
async def doors(setup: Setup, keep_s: float) -> AsyncIterator[tuple[str, int]]:
    """The proxy as `serve` has it: address and port."""
    config = server._config(setup.proxy)
    config.timeout_keep_alive = keep_s  # type: ignore[assignment]
    running = server._Server(config)
    bound = server._bound("127.0.0.1", 0, "port")
    task = asyncio.create_task(running.serve(sockets=[bound]))
    await until(lambda: running.started)
    try:
        yield bound.getsockname()
    finally:
        running.should_exit = True
        await asyncio.wait_for(task, 10)
        bound.close()


def run(test: Test, keep_s: float = 60.0, **options: Any) -> None:
    async def main() -> None:
        clients: list[Client] = []
        async with routed("1P1D", **options) as setup, doors(setup, keep_s) as address:

            async def connect() -> Client:
                clients.append(Client(*await asyncio.open_connection(*address)))
                return clients[-1]

            try:
                await test(setup, connect)
                await until(lambda: setup.service.in_flight == 0, "the end of all requests")
            finally:
                for client in clients:
                    client.writer.close()

    asyncio.run(main())


def test_answers_follow_each_other_on_one_connection() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        for number in range(3):
            client.ask(PLAIN, x_request_id=f"mine-{number}")
            status, headers, body = await client.answer()
            assert status == 200 and headers["x-request-id"] == f"mine-{number}"
            assert json.loads(body)["choices"][0]["text"] == "0 1 2 3 "
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
        client.ask(chat, "/v1/chat/completions")
        status, headers, body = await client.answer()
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        assert body.count(b'"text"') == 4 and body.endswith(DONE)
        assert setup.legs == {"prefill/0": 4, "decode/0": 4}

    run(test)


def test_a_piece_of_a_stream_comes_before_the_next_one_is_there() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        goes_on = asyncio.Event()

        async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
            writer.write(STREAM + chunk(piece("a")))
            await goes_on.wait()
            writer.write(chunk(piece("b")) + chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n")

        setup.engines["decode/0"].acts = [act]
        client = await connect()
        client.ask(STREAMED)
        status, headers = await client.head()
        assert status == 200 and headers["transfer-encoding"] == "chunked"
        assert await client.chunk() == piece("a")
        goes_on.set()
        assert await client.chunk() == piece("b") + DONE
        assert await client.chunk() == b""

    run(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_may_come_in_pieces(chunked: bool) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        data = json.dumps(PLAIN).encode()
        head, body = request(PLAIN).split(b"\r\n\r\n")
        if chunked:
            head = head.replace(b"content-length: %d" % len(data), b"transfer-encoding: chunked")
            body = chunk(data[:10]) + chunk(data[10:]) + b"0\r\n\r\n"
        for part in (head[:40], head[40:] + b"\r\n\r\n" + body[:8], body[8:]):
            client.say(part)
            await asyncio.sleep(0.02)
        assert (await client.answer())[0] == 200

    run(test)


def test_what_is_not_a_completion_is_served_by_uvicorn_before_and_after() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        for _ in range(2):
            client.ask(PLAIN)
            assert (await client.answer())[0] == 200
            client.say(b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n")
            status, _, body = await client.answer()
            assert status == 200 and json.loads(body)["data"][0]["id"] == "tiny"
        client.ask(PLAIN, "/v1/other")
        assert (await client.answer())[0] == 404

    run(test)


@pytest.mark.parametrize(
    "line", [b"POST /v1/completions?a=b HTTP/1.1\r\n", b"POST /v1/comp", b"POST /v1/completions HTTP/1.0\r\n"]
)
def test_a_completion_that_begins_otherwise_is_answered_all_the_same(line: bytes) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        rest = request(PLAIN).partition(b"\r\n")[2]
        client.say(line)
        await asyncio.sleep(0.02)
        client.say(rest if line.endswith(b"\n") else b"letions HTTP/1.1\r\n" + rest)
        assert (await client.answer())[0] == 200

    run(test)


def test_a_client_that_waits_for_leave_to_go_on_gets_it() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        head, body = request(PLAIN, expect="100-continue").split(b"\r\n\r\n")
        client.say(head + b"\r\n\r\n")
        assert (await client.head())[0] == 100
        client.say(body)
        assert (await client.answer())[0] == 200

    run(test)


def test_a_client_that_offers_another_protocol_is_answered_in_this_one() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.ask(PLAIN, connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAEAAEAAAAIAAAAA")
        assert (await client.answer())[0] == 200

    run(test)


def test_a_refused_request_leaves_the_connection_to_the_next() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.ask(b"{", authorization="Bearer secret")
        status, _, body = await client.answer()
        assert status == 400 and "not valid JSON" in json.loads(body)["error"]["message"]
        client.ask(PLAIN, authorization="Bearer wrong")
        assert (await client.answer())[0] == 401
        client.ask(PLAIN, authorization="Bearer secret")
        assert (await client.answer())[0] == 200

    run(test, keys=("secret",))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_before_it_has_come(chunked: bool) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        head, body = request(b"x" * 10_000).split(b"\r\n\r\n")
        if chunked:
            head, body = head.replace(b"content-length: 10000", b"transfer-encoding: chunked"), chunk(body)
        client.say(head + b"\r\n\r\n" + body[: 5_000 if chunked else 100])
        status, headers, answer = await client.answer()
        assert status == 413 and headers["connection"] == "close"
        assert "larger than 4096 bytes" in json.loads(answer)["error"]["message"]
        assert await client.closed()

    run(test, max_body_bytes=4_096)


def test_a_connection_is_closed_where_its_client_wants_that() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        for body in (PLAIN, STREAMED):
            client = await connect()
            client.ask(body, connection="close")
            status, headers, _ = await client.answer()
            assert status == 200 and headers["connection"] == "close" and await client.closed()

    run(test)


def test_of_two_requests_at_once_the_second_must_be_sent_again() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.say(request(PLAIN) * 2)
        assert (await client.answer())[0] == 200
        assert await client.closed() and setup.legs["prefill/0"] == 1

    run(test)


@pytest.mark.parametrize("bad", [b"no header\r\n\r\n", b"content-length: x\r\n\r\n"])
def test_what_is_not_http_is_refused(bad: bytes) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.say(b"POST /v1/completions HTTP/1.1\r\n" + bad)
        status, _, body = await client.answer()
        assert status == 400 and "not HTTP" in json.loads(body)["error"]["message"]
        assert await client.closed()

    run(test)


def test_a_head_without_end_is_cut_off() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.say(b"POST /v1/completions HTTP/1.1\r\n")
        await asyncio.sleep(0.02)
        for _ in range(40):
            client.say(b"a: " + b"b" * 10_000 + b"\r\n")
        with pytest.raises(ConnectionError):
            while not await client.closed():
                pass
            raise ConnectionResetError

    run(test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_aborts_its_leg(streamed: bool, tmp_path: Path) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        engine = setup.engines["decode/0"]
        engine.acts = [stream(piece("a"), then="hang") if streamed else hang]
        client = await connect()
        client.ask(STREAMED if streamed else PLAIN)
        if streamed:
            await client.head()
        else:
            await until(lambda: engine.legs)
        client.writer.close()
        await asyncio.wait_for(engine.aborted.wait(), 10)
        await until(lambda: setup.service.in_flight == 0)
        assert [record["status"] for record in setup.records()] == ["cancelled"]
        assert setup.service.router.state.in_flight == 0

    run(test, path=tmp_path / "records.jsonl")


def test_a_client_that_leaves_before_its_body_is_whole_leaves_nothing() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.say(request(PLAIN)[:-3])
        await until(lambda: setup.service.in_flight == 1)
        client.writer.close()
        await until(lambda: setup.service.in_flight == 0)
        assert setup.legs["prefill/0"] == 0

    run(test)


def test_a_slow_client_makes_the_engine_wait_and_loses_nothing() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        count, text = 400, "x" * 50_000
        sent = 0

        async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
            nonlocal sent
            writer.write(STREAM)
            for _ in range(count):
                writer.write(chunk(piece(text)))
                await writer.drain()
                sent += 1
            writer.write(chunk(USAGE + DONE) + b"0\r\n\r\n")

        setup.engines["decode/0"].acts = [act]
        client = await connect()
        client.ask(STREAMED)
        await client.head()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < count
        body = b""
        while data := await client.chunk():
            body += data
        assert body == piece(text) * count + DONE and sent == count

    run(test)


def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        silent, client = await connect(), await connect()
        client.ask(PLAIN)
        assert (await client.answer())[0] == 200
        assert await client.closed() and await silent.closed()

    run(test, keep_s=0.1)


def test_a_client_that_leaves_before_its_request_is_looked_at_is_recorded(tmp_path: Path) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        door = Door(server._config(setup.proxy), ServerState(), {})
        door.connection_made(Mock(spec=asyncio.Transport))
        door.data_received(request(PLAIN))
        assert setup.service.in_flight == 1
        door.connection_lost(None)
        await until(lambda: setup.service.in_flight == 0)
        assert [record["status"] for record in setup.records()] == ["cancelled"]

    run(test, path=tmp_path / "records.jsonl")


def test_a_shutdown_closes_idle_connections_at_once_and_others_after_their_answer() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        goes_on = asyncio.Event()

        async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
            writer.write(STREAM + chunk(piece("a")))
            await goes_on.wait()
            writer.write(chunk(piece("b") + USAGE + DONE) + b"0\r\n\r\n")

        setup.engines["decode/0"].acts = [act]
        config = server._config(setup.proxy)
        running = server._Server(config)
        bound = server._bound("127.0.0.1", 0, "port")
        task = asyncio.create_task(running.serve(sockets=[bound]))
        await until(lambda: running.started)
        idle, client = [Client(*await asyncio.open_connection(*bound.getsockname())) for _ in range(2)]
        client.ask(STREAMED)
        await client.head()
        running.should_exit = True
        assert await idle.closed()
        goes_on.set()
        assert await client.chunk() == piece("a") and await client.chunk() == piece("b") + DONE
        assert await client.chunk() == b"" and await client.closed()
        await asyncio.wait_for(task, 10)
        bound.close()
        for each in (idle, client):
            each.writer.close()

    run(test)


def test_a_body_that_does_not_come_is_given_up_after_a_while() -> None:
    async def test(setup: Setup, connect: Any) -> None:
        client = await connect()
        client.say(request(PLAIN)[:-3])
        status, headers, body = await client.answer()
        assert status == 408 and headers["connection"] == "close"
        assert json.loads(body)["error"]["message"] == "no more of the body came for 0.2 s"
        assert await client.closed() and setup.service.in_flight == 0

    run(test, keep_s=0.2)


def test_a_client_that_reads_nothing_for_a_while_is_cut_off(tmp_path: Path) -> None:
    async def test(setup: Setup, connect: Any) -> None:
        engine = setup.engines["decode/0"]
        engine.acts = [stream(*[piece("x" * 1_000_000)] * 40)]
        client = await connect()
        client.ask(STREAMED)
        await until(lambda: engine.legs)
        await until(lambda: setup.service.in_flight == 0)
        assert [record["status"] for record in setup.records()] == ["cancelled"]

    run(test, keep_s=0.3, path=tmp_path / "records.jsonl")
