"""A lean HTTP/1.1 server: one callback per request, and answers that can be written piece by piece or broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools
import orjson

MAX_BODY = 64 * 1024 * 1024
"""Bytes of the largest body."""

_JSON = b"application/json"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Exchange:
    """One request and its answer.

    Attributes:
        method: as in GET.
        path: without the query.
        headers: by lower-case name.
        body: as it came.
        on_disconnect: called when the client goes away before the answer is complete.
        answer_headers: lines that every answer to it carries, each ended by CR LF.
    """

    __slots__ = ("_connection", "answer_headers", "body", "done", "headers", "method", "on_disconnect", "path")

    def __init__(
        self, connection: _Connection, method: str, path: str, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.on_disconnect: Callable[[], None] | None = None
        self.answer_headers = b""
        self.done = False

    def reply(self, status: int, body: bytes = b"", content_type: bytes = _JSON) -> None:
        """Answers at once."""
        kind = b"content-type: " + content_type + b"\r\n" if body else b""
        self._connection.write(
            b"HTTP/1.1 %d %b\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (status, _REASONS.get(status, b""), self.answer_headers, kind, len(body), body)
        )
        self._end()

    def reply_json(self, status: int, content: object) -> None:
        """Answers at once with a JSON object."""
        self.reply(status, orjson.dumps(content))

    def begin_events(self) -> None:
        """Begins an answer of server-sent events."""
        self._connection.write(
            b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
            % self.answer_headers
        )

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Sends a piece of an answer that was begun."""
        end = b"0\r\n\r\n" if last else b""
        self._connection.write(b"%x\r\n%b\r\n%b" % (len(data), data, end))
        if last:
            self._end()

    def cut(self) -> None:
        """Breaks the connection off without a word."""
        self.done = True
        self._connection.cut()

    def _end(self) -> None:
        self.done = True
        self._connection.next_exchange()


class HttpServer:
    """Listens, and hands each request to a function.

    Args:
        handle: called with each request; answers it then or later.
    """

    def __init__(self, handle: Callable[[Exchange], None]) -> None:
        self.handle = handle
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts to listen; returns the port.

        Raises:
            OSError: the port is taken, or the address is not this machine's.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listens no more; connections without a request are closed, and the others when they are done."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.close_when_done()

    def cut(self) -> None:
        """Listens no more, and breaks off all connections."""
        self.close()
        for connection in list(self.connections):
            connection.cut()


class _Connection(asyncio.Protocol):
    """One connection; its requests are answered one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[Exchange] = []
        self._current: Exchange | None = None
        self._closing = False
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0

    # --- asyncio --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        current, self._current = self._current, None
        self._waiting.clear()
        if current is not None and not current.done and current.on_disconnect is not None:
            current.on_disconnect()

    # --- httptools ------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers[name] = value
        if name == b"expect" and value.lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY:
            self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii", "replace")
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        exchange = Exchange(self, method, path, self._headers, b"".join(self._body))
        if self._size > MAX_BODY:
            self._refuse(413)
            return
        self._closing |= not self._parser.should_keep_alive()
        self._begin()
        if self._current is None:
            self._take(exchange)
        else:
            self._waiting.append(exchange)

    # --- answers --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends bytes; nothing when the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def next_exchange(self) -> None:
        """The answer is complete: the next request, or the end of the connection."""
        self._current = None
        if self._waiting:
            self._take(self._waiting.pop(0))
        elif self._closing and self._transport is not None:
            self._transport.close()

    def close_when_done(self) -> None:
        """Closes once nothing is being answered."""
        self._closing = True
        if self._current is None and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Breaks off."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, exchange: Exchange) -> None:
        self._current = exchange
        self._server.handle(exchange)

    def _refuse(self, status: int) -> None:
        self.write(b"HTTP/1.1 %d %b\r\ncontent-length: 0\r\n\r\n" % (status, _REASONS[status]))
        if self._transport is not None:
            self._transport.close()
