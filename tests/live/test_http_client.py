"""The client of the engines: whole answers, streams, kept connections, limits and aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from disaggroute.live.http_client import HttpClient, Unreachable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[HttpClient]:
    """A server that answers as it likes, and a client of it."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        listening.close()
        for task in tasks:
            task.cancel()


async def request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_request_and_its_answer_keep_the_connection() -> None:
    connections: list[int] = []
    seen: list[tuple[bytes, bytes]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        while True:
            seen.append(await request(reader))
            writer.write(answer(b"hello", b"404 Not Found" if b"/b" in seen[-1][0] else b"200 OK"))

    async def main() -> None:
        async with server(handler) as client:
            one = await client.fetch("POST", "/a", b'{"x": 1}')
            two = await client.fetch("GET", "/b", headers=b"x-request-id: 7\r\n")
            assert (one.status, one.body) == (200, b"hello") and two.status == 404
            assert one.headers[b"content-length"] == b"5" and client.connections == 1

    asyncio.run(main())
    assert len(connections) == 1
    assert seen[0][0].startswith(b"POST /a HTTP/1.1\r\nhost: 127.0.0.1:") and seen[0][1] == b'{"x": 1}'
    assert b"x-request-id: 7\r\n" in seen[1][0]


def test_a_stream_comes_piece_by_piece_and_ends() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM)
        for piece in (b"one", b"two"):
            writer.write(chunk(piece))
            await writer.drain()
            await go.wait()
        writer.write(b"0\r\n\r\n")
        await reader.read()

    go = asyncio.Event()

    async def main() -> None:
        async with server(handler) as client:
            response = await client.open("POST", "/")
            assert response.status == 200
            assert await response.read() == b"one"
            go.set()
            assert await response.read() == b"two"
            assert await response.read() == b"" and await response.read() == b""

    asyncio.run(main())


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async def main() -> None:
        async with server(handler) as client:
            assert (await client.fetch("GET", "/")).body == b"all of it"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "the connection was lost"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "the connection was lost"),
        (STREAM + chunk(b"half"), "the connection was lost"),
        (b"what?\r\n\r\n", "the answer is not HTTP"),
    ],
)
def test_an_answer_that_does_not_come_whole_is_an_error(sent: bytes, reason: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(sent)

    async def main() -> None:
        async with server(handler) as client:
            with pytest.raises(Unreachable, match=reason):
                await client.fetch("GET", "/")
            await asyncio.sleep(0)
            assert client.connections == 0

    asyncio.run(main())


def test_no_answer_in_time_is_an_error_and_the_connection_is_closed() -> None:
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()
        closed.set()

    async def main() -> None:
        async with server(handler) as client:
            with pytest.raises(Unreachable, match=r"no whole answer within 0\.05 s"):
                await client.fetch("GET", "/", timeout=0.05)
            await asyncio.wait_for(closed.wait(), 10)

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cancelled_request_closes_the_connection(streamed: bool) -> None:
    closed, begun = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        if streamed:
            writer.write(STREAM + chunk(b"a piece"))
        begun.set()
        with suppress(ConnectionError):
            await reader.read()
        closed.set()

    async def main() -> None:
        async with server(handler) as client:
            task = asyncio.create_task(client.fetch("GET", "/"))
            await begun.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(closed.wait(), 10)

    asyncio.run(main())


def test_an_aborted_stream_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(STREAM + chunk(b"a piece"))
        with suppress(ConnectionError):
            await reader.read()
        closed.set()

    async def main() -> None:
        async with server(handler) as client:
            response = await client.open("GET", "/")
            assert await response.read() == b"a piece"
            response.abort()
            with pytest.raises(Unreachable, match="aborted"):
                await response.read()
            await asyncio.wait_for(closed.wait(), 10)

    asyncio.run(main())


def test_a_kept_connection_that_the_engine_has_closed_costs_no_request() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request(reader)
        seen.append(head.split()[1])
        writer.write(answer(b"ok"))
        if seen == [b"/1"]:  # Closed as the next request comes in.
            await reader.read(1)
            writer.transport.abort()
            return
        await request(reader)

    async def main() -> None:
        async with server(handler) as client:
            assert (await client.fetch("GET", "/1")).body == b"ok"
            assert (await client.fetch("GET", "/2")).body == b"ok"

    asyncio.run(main())
    assert seen == [b"/1", b"/2"]


def test_a_request_that_may_have_been_served_is_not_sent_twice() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await request(reader)
        seen.append(head.split()[1])
        writer.write(answer(b"ok"))
        seen.append((await request(reader))[0].split()[1])
        writer.transport.abort()

    async def main() -> None:
        async with server(handler) as client:
            await client.fetch("POST", "/1")
            with pytest.raises(Unreachable, match="the connection was lost"):
                await client.fetch("POST", "/2")

    asyncio.run(main())
    assert seen == [b"/1", b"/2"]


def test_a_stream_that_nobody_reads_makes_the_engine_wait() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(STREAM)
        for _ in range(400):
            writer.write(chunk(bytes(65_536)))
            await writer.drain()
            sent += 65_536
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with server(handler) as client:
            response = await client.open("GET", "/")
            before = -1
            while before != sent:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 400 * 65_536
            size = 0
            while piece := await response.read():
                size += len(piece)
            assert size == 400 * 65_536

    asyncio.run(main())


def test_a_large_body_that_has_come_before_somebody_wants_it_whole_comes_to_its_end() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * 65_536))
        for _ in range(64):
            writer.write(bytes(65_536))
            await writer.drain()
        await reader.read()

    async def main() -> None:
        async with server(handler) as client:
            response = await client.open("GET", "/")
            while not response._connection._paused:
                await asyncio.sleep(0.01)
            assert len(await asyncio.wait_for(response.whole(), 30)) == 64 * 65_536

    asyncio.run(main())


def test_an_engine_that_is_not_there_is_unreachable() -> None:
    async def main() -> None:
        async with server(lambda *_: asyncio.sleep(0)) as client:
            url = client.url
        with pytest.raises(Unreachable, match=f"{url}: "):
            await HttpClient(url).fetch("GET", "/")

    asyncio.run(main())


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://a", "http://", "http://a?b=1"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="it must be like http://host:port"):
        HttpClient(url)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_request_that_is_given_up_here_on_a_kept_connection_is_not_sent_again(method: str, closed: bool) -> None:
    """Neither when its limit has passed nor when the client is closed: the engine has it and may be at work."""
    seen: list[bytes] = []
    asked = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await request(reader)
            seen.append(head.split()[1])
            if head.split()[1] == b"/1":
                writer.write(answer(b"ok"))
            else:
                asked.set()

    async def main() -> None:
        async with server(handler) as client:
            await client.fetch("GET", "/1")
            second = asyncio.create_task(client.fetch(method, "/2", timeout=None if closed else 0.2))
            await asked.wait()
            if closed:
                await client.close()
            with pytest.raises(Unreachable):
                await second

    asyncio.run(main())
    assert seen == [b"/1", b"/2"]


def test_a_connection_that_nobody_uses_any_more_is_closed_by_itself() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with server(handler) as usual:
            client = HttpClient(usual.url, idle_s=0.05)
            await client.fetch("GET", "/")
            assert client.connections == 1
            for _ in range(500):
                if not client.connections:
                    break
                await asyncio.sleep(0.01)
            assert client.connections == 0

    asyncio.run(main())
