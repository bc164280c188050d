"""The least HTTP that a benchmark needs at either end: one request at a time on a connection, and no tasks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import httptools

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

LAST_CHUNK = b"0\r\n\r\n"


def whole(body: bytes, status: bytes = b"200 OK", content_type: bytes = b"application/json") -> bytes:
    """An answer in one piece."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, content_type, len(body), body)


def chunk(data: bytes) -> bytes:
    """A piece of an answer whose length nobody knows yet."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def post(path: bytes, body: bytes) -> bytes:
    """A request with a body in JSON."""
    head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (path, len(body)) + body


class Connection(asyncio.Protocol):
    """What both ends have in common."""

    def __init__(self) -> None:
        self.transport = cast(asyncio.Transport, None)
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self.transport = cast(asyncio.Transport, transport)

    def on_body(self, data: bytes) -> None:
        """Of httptools."""
        self._parts.append(data)

    def _body(self) -> bytes:
        body, self._parts = b"".join(self._parts), []
        return body


class Served(Connection):
    """A server's end of a connection.

    Args:
        asked: told of each request: the connection, the path and the body.
    """

    def __init__(self, asked: Callable[[Served, bytes, bytes], None]) -> None:
        super().__init__()
        self._asked = asked
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Of httptools."""
        self._path = url

    def on_message_complete(self) -> None:
        """Of httptools."""
        self._asked(self, self._path, self._body())


class Asking(Connection, ABC):
    """A client's end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        """Of the last answer."""
        return int(self._parser.get_status_code())

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Of httptools."""
        self.answered(self._body())

    @abstractmethod
    def answered(self, body: bytes) -> None:
        """A whole answer has come."""
