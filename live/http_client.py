"""HTTP/1.1 to one engine: kept connections, whole answers or streams, and an abort that the engine notices.

The router's data path forwards bytes; a general client would cost several times what the rest of a request does. So
this one does what engines need and no more: no redirects, no cookies, no compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

HIGH_WATER = 1 << 18
"""Bytes of a stream that may wait to be read before the engine is made to wait."""

_FRAMES = {b"content-length", b"transfer-encoding"}

JSON = b"content-type: application/json\r\n"

Sink = Callable[[bytes, bool], bool]
"""Takes what has come of a body at once, and whether it ends there; whether more may come."""


class Unreachable(ConnectionError):
    """An engine could not be reached, went away in the middle of an answer, or did not answer in time."""


class Answer(NamedTuple):
    """A whole answer.

    Attributes:
        status: of HTTP.
        headers: by lower-case name.
        body: bytes.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


class HttpClient:
    """Connections to one engine.

    Args:
        url: `http://host:port`, or https.
        connect_s: how long a connection may take, s.
        idle_s: how long an unused connection is kept, s; less than the engine's own limit (uvicorn: 5 s), so that
            requests do not meet a connection that is just being closed.
        max_idle: unused connections that are kept.

    Raises:
        ValueError: the URL is not one of these.
    """

    def __init__(self, url: str, *, connect_s: float = 2.0, idle_s: float = 3.0, max_idle: int = 512) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url is {url!r}; it must be like http://host:port")
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/").encode()
        self._fixed = b"host: " + parts.netloc.rpartition("@")[2].encode() + b"\r\n"
        self._connect_s, self._idle_s, self._max_idle = connect_s, idle_s, max_idle
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._open: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """How many are open, unused ones included."""
        return len(self._open)

    async def fetch(
        self, method: str, path: str, body: bytes = b"", headers: bytes = JSON, timeout: float | None = None
    ) -> Answer:
        """A request and its whole answer.

        Args:
            method: of HTTP.
            path: with a leading slash.
            body: bytes.
            headers: further lines, each ended by CR LF.
            timeout: s from when it is sent to the end of the answer, and at most for the connection; None: no limit.

        Raises:
            Unreachable: no connection, or none to the end of the answer; the limit has passed.
        """
        response = await self.open(method, path, body, headers, timeout)
        return Answer(response.status, response.headers, await response.whole())

    async def open(
        self, method: str, path: str, body: bytes = b"", headers: bytes = JSON, timeout: float | None = None
    ) -> Response:
        """A request, up to the head of its answer; the body comes from the response.

        A cancelled call closes the connection, so that the engine aborts the request.

        Args:
            method: of HTTP.
            path: with a leading slash.
            body: bytes.
            headers: further lines, each ended by CR LF.
            timeout: s from when it is sent to the end of the answer, and at most for the connection; None: no limit.

        Raises:
            Unreachable: as for `fetch`.
        """
        head = b"%b %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            method.encode(),
            self._path,
            path.encode(),
            self._fixed,
            headers,
            len(body),
        )
        while True:
            connection = self._kept()
            used = connection is not None
            if connection is None:
                connection = await self._connect(timeout)
            response = connection.send(head, body, timeout)
            try:
                await response.head()
            except Unreachable:
                # A kept connection that the engine was just closing: what changes nothing there may be asked again.
                # One that was closed from here (the limit has passed, or by `close`) is none of these.
                if used and response.untouched and method == "GET" and not connection.aborted:
                    continue
                raise
            except BaseException:
                response.abort()
                raise
            return response

    async def close(self) -> None:
        """Closes all connections; requests in flight fail."""
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)

    def _kept(self) -> _Connection | None:
        idle = self._idle
        now = asyncio.get_running_loop().time()
        while idle:
            since, connection = idle.pop()
            if connection.usable and now - since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, timeout: float | None) -> _Connection:
        limit = self._connect_s if timeout is None else min(self._connect_s, timeout)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            raise Unreachable(f"{self.url}: no connection within {limit:g} s") from None
        except OSError as error:
            raise Unreachable(f"{self.url}: {error.strerror or error}") from None
        return connection

    def opened(self, connection: _Connection) -> None:
        """A connection stands."""
        self._open.add(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)

    def spare(self, connection: _Connection) -> None:
        """A connection has nothing more to do."""
        now = asyncio.get_running_loop().time()
        idle = self._idle
        idle.append((now, connection))
        while len(idle) > self._max_idle:
            idle.popleft()[1].abort()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        """Closes what has been idle for too long, also where nobody asks this engine for anything any more."""
        loop, idle = asyncio.get_running_loop(), self._idle
        while idle and loop.time() - idle[0][0] >= self._idle_s:
            idle.popleft()[1].abort()
        left = idle[0][0] + self._idle_s - loop.time() if idle else 0.0
        self._timer = loop.call_later(max(left, 0.01), self._close_idle) if idle else None


class Response:
    """An answer whose body is still to come; it must be read to its end or aborted."""

    __slots__ = (
        *("_chunks", "_connection", "_done", "_error", "_loop", "_sink", "_size", "_waiter"),
        *("headers", "status", "untouched"),
    )

    def __init__(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        """Of HTTP; 0 before the head has come."""
        self.headers: dict[bytes, bytes] = {}
        """By lower-case name."""
        self.untouched = True
        """Whether not a byte of the answer has come."""
        self._connection, self._loop = connection, loop
        self._chunks: list[bytes] = []
        self._size = 0
        self._done = False
        self._error: Exception | None = None
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Waits for status and headers.

        Raises:
            Unreachable: the connection is lost, or the limit has passed.
        """
        while not self.status:
            if self._error:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """What has come since the last call, at least a byte; empty at the end.

        Raises:
            Unreachable: the connection is lost before the end, or the limit has passed.
        """
        while not self._chunks:
            if self._error:
                raise self._error
            if self._done:
                return b""
            await self._wait()
        chunks = self._chunks
        self._chunks = []
        if self._size > HIGH_WATER:
            self._connection.resume()
        self._size = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def forward(self, sink: Sink) -> None:
        """Gives the body to a function as it comes, from here to its end.

        The function is called as the bytes are read, which spares a task's turn for every piece of a stream; it must
        not wait. When it wants no more for now, `resume` lets the engine go on.

        Args:
            sink: takes the bytes.

        Raises:
            Unreachable: as for `read`.
            Exception: what `sink` raised; the connection is closed then.
        """
        self._sink = sink
        if self._chunks or self._done:
            self.deliver()
        while not (self._done or self._error):
            await self._wait()
        if self._error:
            raise self._error

    def resume(self) -> None:
        """More may come."""
        if not self._done:
            self._connection.resume()

    async def whole(self) -> bytes:
        """The body from here to its end.

        Raises:
            Unreachable: as for `read`.
        """
        try:
            while not self._done:
                if self._error:
                    raise self._error
                self._connection.resume()  # All of it is wanted, however much had come before.
                await self._wait()
        except asyncio.CancelledError:
            self.abort()
            raise
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def abort(self) -> None:
        """Closes the connection unless the answer has ended: the engine aborts the request."""
        self._sink = None
        if not self._done and self._error is None:
            self._connection.abort()
            self.fail("aborted")

    # --- what the connection tells ---

    def take(self, data: bytes) -> None:
        """A piece of the body has come."""
        self._chunks.append(data)
        self._size += len(data)

    def finish(self) -> None:
        """The body has ended."""
        self._done = True

    def deliver(self) -> None:
        """What has come so far is all that there is for now."""
        sink = self._sink
        if sink is None:
            if self._size > HIGH_WATER and not self._done:
                self._connection.pause()
            self.wake()
            return
        chunks = self._chunks
        if chunks or self._done:
            self._chunks = []
            self._size = 0
            try:
                more = sink(chunks[0] if len(chunks) == 1 else b"".join(chunks), self._done)
            except Exception as error:
                self._error, self._sink = error, None
                if not self._done:
                    self._connection.abort()
                self.wake()
                return
            if self._done:
                self.wake()
            elif not more and self._error is None:
                self._connection.pause()

    def fail(self, reason: str) -> None:
        """The answer will not come to its end."""
        if not self._done and self._error is None:
            self._error = Unreachable(f"{self._connection.url}: {reason}")
            self.wake()

    def wake(self) -> None:
        """Somebody may wait."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.url = client.url
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self.aborted = False
        """Whether it was closed from here."""

    @property
    def usable(self) -> bool:
        """Whether a request may be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._response is None

    def send(self, head: bytes, body: bytes, timeout: float | None) -> Response:
        """Sends a request."""
        assert self._transport is not None
        response = self._response = Response(self, self._loop)
        self._transport.write(head + body if len(body) < 65_536 else head)
        if len(body) >= 65_536:
            self._transport.write(body)
        if timeout is not None:
            self._timer = self._loop.call_later(timeout, self._expired, timeout)
        return response

    def _expired(self, timeout: float) -> None:
        self.abort()
        self._end(f"no whole answer within {timeout:g} s")

    def abort(self) -> None:
        """Closes the connection at once."""
        self.aborted = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """The engine must wait."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """The engine may go on."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _end(self, reason: str) -> None:
        response, self._response = self._response, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if response is not None:
            response.fail(reason)

    # --- of asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")
        self._transport = transport  # type: ignore[assignment]
        self._client.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self._client.lost(self)
        self._end("the connection was lost" if error is None else f"the connection was lost ({error})")

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        response = self._response
        if response is None:  # Nothing was asked.
            self.abort()
            return
        response.untouched = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            response.deliver()
            self._end(f"the answer is not HTTP ({error})")
            self.abort()
        else:
            response.deliver()

    def eof_received(self) -> None:
        """Of asyncio: an answer without a length ends here."""
        response = self._response
        if response is not None and response.status and not response.headers.keys() & _FRAMES:
            self.on_message_complete()
            response.deliver()

    # --- of httptools ---

    def on_message_begin(self) -> None:
        """Of httptools."""
        if self._response is not None:
            self._response.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        if self._response is not None:
            self._response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Of httptools."""
        status = self._parser.get_status_code()
        if self._response is not None and status >= 200:
            self._response.status = status

    def on_body(self, data: bytes) -> None:
        """Of httptools."""
        if self._response is not None:
            self._response.take(data)

    def on_message_complete(self) -> None:
        """Of httptools."""
        response = self._response
        if response is None or self._parser.get_status_code() < 200:
            return
        self._response = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        keep = self._parser.should_keep_alive() and self._transport is not None and not self._transport.is_closing()
        self.resume()
        response.finish()
        if keep:
            self._client.spare(self)
        else:
            self.abort()
