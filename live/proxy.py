"""The hot path: completions of clients, as a plain ASGI application that forwards bytes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .relay import error_event
from .request import Refused, Request, parse
from .service import Service
from .two_legs import CHAT, COMPLETIONS

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

PATHS = (COMPLETIONS, CHAT)

JSON_TYPE = b"application/json"

log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client closed the connection before its request was whole."""


class ApiKeys:
    """Keys of which a client must show one; none: everybody may come.

    Args:
        keys: not empty.
    """

    def __init__(self, keys: list[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __bool__(self) -> bool:
        """Whether a key is needed."""
        return bool(self._keys)

    def admit(self, authorization: bytes | None) -> bool:
        """Whether a header `Authorization: Bearer KEY` shows one of them."""
        if not self._keys:
            return True
        kind, _, key = (authorization or b"").partition(b" ")
        if kind.lower() != b"bearer":
            return False
        key = key.strip()
        fits = [hmac.compare_digest(key, known) for known in self._keys]  # all of them: the time tells nothing
        return any(fits)


class AsgiReply:
    """An answer over ASGI."""

    __slots__ = ("_id", "_send", "begun", "ended")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._id = (b"x-request-id", request_id.encode("latin-1", "replace"))
        self.begun = self.ended = False

    async def begin(self, status: int, content_type: bytes) -> None:
        """Status and headers."""
        self.begun = True
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache"), self._id]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes) -> None:
        """A piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The body is complete."""
        if not self.ended:
            self.ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer in JSON."""
        self.begun = self.ended = True
        length = (b"content-length", b"%d" % len(body))
        said = [(b"content-type", JSON_TYPE), length, self._id, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": said})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


class Proxy:
    """Completions go through the relay, everything else to another application.

    Args:
        service: the router.
        keys: that clients must show.
        other: ASGI application for all other paths.
    """

    def __init__(self, service: Service, keys: ApiKeys, other: Any) -> None:
        self._service, self._keys, self._other = service, keys, other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            await self._other(scope, receive, send)
            return
        service = self._service
        service.enter()
        try:
            await self._complete(scope, receive, send)
        finally:
            service.leave()

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        headers = dict(scope["headers"])
        reply = AsgiReply(send, headers.get(b"x-request-id", b"")[:200].decode("latin-1"))
        request: Request | None = None
        try:
            self._admit(headers)
            arrival = service.clock.now()
            body = await read_body(receive, headers, service.options.max_body_bytes)
            request = parse(scope["path"], body, headers, service.cluster.model, arrival)
            reply = AsgiReply(send, request.id)
            await self._follow(request, receive, reply)
        except Refused as error:
            wait = error.retry_after_s
            extra = ((b"retry-after", b"%d" % wait),) if wait is not None else ()
            if not reply.begun:
                await reply.whole(error.status, error.body, extra)
        except ClientGone:
            pass
        except Exception:
            log.exception("request %s", request.id if request else "")
            if not reply.begun:
                failure = Refused("the router failed; its log says more", status=500, kind="internal_error")
                await reply.whole(500, failure.body)
            elif not reply.ended:
                await reply.send(error_event("the router failed; its log says more"))
                await reply.end()

    def _admit(self, headers: dict[bytes, bytes]) -> None:
        service = self._service
        if not self._keys.admit(headers.get(b"authorization")):
            raise Refused("the API key is missing or wrong; send it as Authorization: Bearer KEY", status=401)
        if service.draining:
            raise Refused("the router is shutting down", status=503, kind="service_unavailable", retry_after_s=5)
        most = service.options.max_in_flight
        if service.in_flight > most:
            text = f"the router has {most} requests in flight, the most it takes; try again later"
            raise Refused(text, status=429, kind="rate_limit_error", retry_after_s=1)

    async def _follow(self, request: Request, receive: Receive, reply: AsgiReply) -> None:
        """Leads the request through the engines, and lets go when its client does."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            if not reply.ended:
                gone = True
                task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await self._route(request, reply)
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def _route(self, request: Request, reply: AsgiReply) -> None:
        service = self._service
        try:
            if request.prompt == 0:
                request.prompt = await service.tokenizer.count(request)
            check_length(request, service.max_model_len)
        except Refused as error:
            service.relay.reject(request, error)
            raise
        except asyncio.CancelledError:
            service.relay.cancelled(request)
            raise
        await service.relay.run(request, reply)


def check_length(request: Request, most: int) -> None:
    """Refuses what no engine would take.

    Raises:
        Refused: the prompt alone, or with the output that the client wants, is longer than the context limit.
    """
    if most and request.prompt + (request.limit or 1) > most:
        output = f" and {request.limit} output tokens" if request.limit else ", which leaves none for output"
        text = f"the request has {request.prompt} prompt tokens{output}; the model's context limit is {most} tokens"
        raise Refused(text, param="messages" if request.chat else "prompt")


async def read_body(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    """The body of a request.

    Raises:
        Refused: it is larger than `most` bytes.
        ClientGone: the client left before it was whole.
    """
    told = headers.get(b"content-length", b"")
    if told.isdigit() and int(told) > most:
        raise _too_large(most)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _within(message.get("body", b""), most)
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _within(body: bytes, most: int) -> bytes:
    if len(body) > most:
        raise _too_large(most)
    return body


def _too_large(most: int) -> Refused:
    return Refused(f"the body is larger than {most} bytes, the most this router takes", status=413)
