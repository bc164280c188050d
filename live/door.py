"""The clients' door: HTTP/1.1 for completions, with nothing between the socket and the relay.

uvicorn calls an application through ASGI, which costs a request about as much as all that the router itself does. So
completions are read and answered here. A connection whose next request does not begin as a completion does is handed
to uvicorn's own protocol, and stays there; the same `Proxy` serves it then as an ASGI application.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .proxy import PATHS, Proxy, too_large
from .request import Refused

OURS = tuple(b"POST %b HTTP/1.1\r\n" % path.encode() for path in PATHS)
"""How a request begins that is served here."""

STATUS = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}

UPGRADE = re.compile(rb"\r\nupgrade:[^\r]*", re.IGNORECASE)

MAX_HEAD = 1 << 18
"""Bytes that the head of a request may have."""

CLOSE = b"connection: close\r\n"

LAST_CHUNK = b"0\r\n\r\n"


class Door(asyncio.Protocol):
    """One connection of a client, one request at a time; it is also where the answer goes (`ClientReply`).

    Args:
        config: of uvicorn; its application is a `Proxy`.
        server_state: uvicorn's, shared by all connections.
        app_state: likewise.
        _loop: the event loop.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._loop = _loop or asyncio.get_running_loop()
        self._of_uvicorn = config, server_state, app_state
        self._proxy = cast(Proxy, config.loaded_app)
        self._open = server_state.connections
        self._keep_s = config.timeout_keep_alive
        self._parser = httptools.HttpRequestParser(self)
        self._transport = cast(asyncio.Transport, None)
        self._held = self._lost = self._closing = False
        self._idle_since = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._entered = False
        self._task: asyncio.Task[None] | None = None
        self._await_request()

    def _await_request(self) -> None:
        """Nothing is asked."""
        self._start: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._path = ""
        self._read = self._foreign = self._surplus = False
        self._refused: Refused | None = None
        self._keep = True
        self._arrival = 0
        self._id = b""
        self._head = b""
        self.begun = self.ended = False
        self.freed: Callable[[], None] | None = None

    # --- of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)  # type: ignore[arg-type]  # Whatever has `shutdown`.
        self._idle_timer = self._loop.call_later(self._keep_s, self._idle)

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        if not self._entered:  # The headers are still to come.
            if not self._start and not data.startswith(OURS):
                self._hand_over(data)
                return
            self._start.append(data)
            self._size += len(data)
            if self._size > MAX_HEAD and len(self._start) > 1:
                self._close()
                return
        else:
            self._idle_since = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            if self._task is None and self._refused is None:
                self._refused = Refused("the request is not HTTP")
            self._surplus = True
        if self._foreign:
            head, end, body = b"".join(self._start).partition(b"\r\n\r\n")
            # Nobody here speaks another protocol, and uvicorn would lose the body of such a request.
            self._hand_over(UPGRADE.sub(b"", head) + end + body)
        elif self._refused is not None and not self._read and self._task is None:
            self._keep = False  # The rest of the body is not wanted.
            self._begin()
        elif self._surplus and self._task is None:
            self._close()

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self._lost = True
        self._open.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._task is not None and not self.ended:
            self._loop.call_soon(self._task.cancel)  # A task that has not begun would never see it, nor count down.
        elif self._task is None and self._entered:
            self._leave()

    def pause_writing(self) -> None:
        """Of asyncio: the client is slow."""
        self._held = True
        self._watch_reading(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Of asyncio."""
        self._held = False
        if self._reading is not None:
            self._reading.cancel()
        if self.freed is not None:
            self.freed()

    def _watch_reading(self, before: int) -> None:
        """Cuts off a client that takes nothing of its answer for too long: its request would be in flight for ever."""
        self._reading = self._loop.call_later(self._keep_s, self._read_some, before)

    def _read_some(self, before: int) -> None:
        left = self._transport.get_write_buffer_size()
        if self._held and not self._lost:
            if left >= before:
                self._transport.abort()
            else:
                self._watch_reading(left)

    # --- of httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Of httptools."""
        if self._read:  # Another request, before this one has its answer: the client must ask again.
            self._surplus = True

    def on_url(self, url: bytes) -> None:
        """Of httptools."""
        if not self._surplus:
            self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        if not self._surplus:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Of httptools."""
        if self._surplus:
            return
        headers = self._headers
        if b"upgrade" in headers or b"expect" in headers:
            self._foreign = True
            return
        self._keep = self._parser.should_keep_alive()
        service = self._proxy.service
        service.enter()
        self._entered = True
        self._idle_since = self._loop.time()
        self._start, self._size = [], 0
        name = headers.get(b"x-request-id", b"")[:200].decode("latin-1")
        self.name(name if name.isprintable() else "")
        try:
            self._arrival = self._proxy.admit(headers)
            told, most = headers.get(b"content-length", b""), service.options.max_body_bytes
            if told.isdigit() and int(told) > most:
                raise too_large(most)
        except Refused as error:
            self._refused = error

    def on_body(self, data: bytes) -> None:
        """Of httptools."""
        if self._surplus or self._refused is not None or self._foreign:
            return
        self._parts.append(data)
        self._size += len(data)
        self._idle_since = self._loop.time()
        most = self._proxy.service.options.max_body_bytes
        if self._size > most:
            self._parts.clear()
            self._refused = too_large(most)

    def on_message_complete(self) -> None:
        """Of httptools."""
        if not (self._surplus or self._foreign):
            self._read = True
            self._begin()

    # --- a request ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._answer())

    async def _answer(self) -> None:
        """Answers the request that has come."""
        try:
            if self._refused is not None:
                await self._proxy.refuse(self, self._refused)
            else:
                parts = self._parts
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                self._parts = []
                await self._proxy.answer(self._path, self._headers, body, self._arrival, self)
        except asyncio.CancelledError:
            if not self._lost:
                self._transport.abort()
                raise
        finally:
            self._task = None
            if self._entered:
                self._leave()
            self._next()

    def _leave(self) -> None:
        self._entered = False
        self._proxy.service.leave()

    def _next(self) -> None:
        """Waits for the next request, if there may be one."""
        if not self._keep or self._surplus or self._closing or not self.ended:
            self._close()
            return
        self._await_request()
        self._idle_since = self._loop.time()

    def _close(self) -> None:
        if not self._lost:
            self._transport.close()

    def _idle(self) -> None:
        """Closes the connection if it has brought nothing for too long, or looks again later."""
        since = self._loop.time() - self._idle_since
        idle = self._task is None
        if idle and since >= self._keep_s and not self._entered:
            self._close()
        elif idle and since >= self._keep_s:
            self._refused, self._keep = Refused(f"no more of the body came for {self._keep_s:g} s", status=408), False
            self._begin()
        else:
            left = self._keep_s - since if idle else self._keep_s
            self._idle_timer = self._loop.call_later(max(left, 0.05), self._idle)

    def shutdown(self) -> None:
        """Of uvicorn: nothing more is taken."""
        self._closing = True
        if self._task is None:
            self._close()

    def _hand_over(self, data: bytes) -> None:
        """Lets uvicorn serve this connection from here on."""
        config, server_state, app_state = self._of_uvicorn
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._open.discard(self)
        other = HttpToolsProtocol(config, server_state, app_state, self._loop)
        self._transport.set_protocol(other)
        other.connection_made(self._transport)
        other.data_received(data)

    # --- its answer -----------------------------------------------------------------------------------

    def name(self, request_id: str) -> None:
        """The request's id, which the answer shows."""
        self._id = request_id.encode("latin-1", "replace")

    def begin(self, status: int, content_type: bytes) -> None:
        """Status and headers; they leave with the first piece."""
        self.begun = True
        self._head = (
            b"%bcontent-type: %b\r\ncache-control: no-cache\r\nx-request-id: %b\r\n%btransfer-encoding: chunked\r\n\r\n"
            % (status_line(status), content_type, self._id, b"" if self._keep else CLOSE)
        )

    def put(self, data: bytes, last: bool = False) -> bool:
        """A piece of the body; whether more may come now."""
        self.ended = last
        if not self._lost:
            piece = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            head, self._head = self._head, b""
            self._transport.write(head + piece + LAST_CHUNK if last else head + piece)
        return not self._held

    async def end(self) -> None:
        """The body is complete."""
        if not self.ended:
            self.put(b"", True)

    async def whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer in JSON."""
        self.begun = self.ended = True
        if self._lost:
            return
        more = b"".join([b"%b: %b\r\n" % each for each in headers])
        self._transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n%b"
            % (status_line(status), len(body), self._id, more, b"" if self._keep else CLOSE, body)
        )


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status
