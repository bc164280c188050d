"""The hot path: completions of clients, as a plain ASGI application that forwards bytes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

from .http_client import HIGH_WATER
from .relay import Reply, error_event
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
    """An answer over ASGI.

    Pieces that are put while others are being sent go out together.
    """

    __slots__ = ("_id", "_messages", "_send", "_sending", "_size", "begun", "ended", "freed")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._id = (b"x-request-id", b"")
        self._messages: list[Message] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self.begun = self.ended = False
        self.freed: Callable[[], None] | None = None

    def name(self, request_id: str) -> None:
        """The request's id, which the answer shows."""
        self._id = (b"x-request-id", request_id.encode("latin-1", "replace"))

    def begin(self, status: int, content_type: bytes) -> None:
        """Status and headers."""
        self.begun = True
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache"), self._id]
        self._messages.append({"type": "http.response.start", "status": status, "headers": headers})

    def put(self, data: bytes, last: bool = False) -> bool:
        """A piece of the body; whether more may come now."""
        self.ended = last
        messages = self._messages
        if messages and messages[-1]["type"] == "http.response.body":
            messages[-1] = body_message(messages[-1]["body"] + data, last)
        else:
            messages.append(body_message(data, last))
        self._size += len(data)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return self._size <= HIGH_WATER

    async def _send_all(self) -> None:
        while self._messages:
            messages, self._messages, self._size = self._messages, [], 0
            for message in messages:
                await self._send(message)
            if self.freed is not None:
                self.freed()
        self._sending = None

    async def end(self) -> None:
        """The body is complete; waits until it is sent."""
        if not self.ended:
            self.put(b"", True)
        if self._sending is not None:
            await self._sending

    def drop(self) -> None:
        """Sends nothing more."""
        if self._sending is not None:
            self._sending.cancel()

    async def whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer in JSON."""
        self.begun = self.ended = True
        length = (b"content-length", b"%d" % len(body))
        said = [(b"content-type", JSON_TYPE), length, self._id, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": said})
        await self._send(body_message(body, True))


def body_message(data: bytes, last: bool) -> Message:
    """A piece of the body as ASGI sends it."""
    return {"type": "http.response.body", "body": data, "more_body": not last}


class ClientReply(Reply, Protocol):
    """Where a client's answer goes.

    Attributes:
        begun: something of it is out.
    """

    begun: bool

    def name(self, request_id: str) -> None:
        """The request's id, which the answer shows."""


class Proxy:
    """Completions go through the relay, everything else to another application.

    Args:
        service: the router.
        keys: that clients must show.
        other: ASGI application for all other paths.
    """

    def __init__(self, service: Service, keys: ApiKeys, other: Any) -> None:
        self.service, self._keys, self._other = service, keys, other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            await self._other(scope, receive, send)
            return
        service = self.service
        service.enter()
        try:
            headers = dict(scope["headers"])
            reply = AsgiReply(send)
            reply.name(headers.get(b"x-request-id", b"")[:200].decode("latin-1"))
            try:
                arrival = self.admit(headers)
                body = await read_body(receive, headers, service.options.max_body_bytes)
            except Refused as error:
                await self.refuse(reply, error)
            except ClientGone:
                pass
            else:
                await self._follow(scope["path"], headers, body, arrival, receive, reply)
        finally:
            service.leave()

    def admit(self, headers: Mapping[bytes, bytes]) -> int:
        """Lets a request in, before its body is read.

        Args:
            headers: by lower-case name.

        Returns:
            When it came, ps of the router's clock.

        Raises:
            Refused: it shows no key, the router has too much to do, or is shutting down.
        """
        service = self.service
        if not self._keys.admit(headers.get(b"authorization")):
            raise Refused("the API key is missing or wrong; send it as Authorization: Bearer KEY", status=401)
        if service.draining:
            raise Refused("the router is shutting down", status=503, kind="service_unavailable", retry_after_s=5)
        most = service.options.max_in_flight
        if service.in_flight > most:
            text = f"the router has {most} requests in flight, the most it takes; try again later"
            raise Refused(text, status=429, kind="rate_limit_error", retry_after_s=1)
        return service.clock.now()

    async def _follow(
        self, path: str, headers: Mapping[bytes, bytes], body: bytes, arrival: int, receive: Receive, reply: AsgiReply
    ) -> None:
        """Answers a request, and lets go when its client does."""
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
            await self.answer(path, headers, body, arrival, reply)
        except asyncio.CancelledError:
            reply.drop()
            if not gone:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def answer(
        self, path: str, headers: Mapping[bytes, bytes], body: bytes, arrival: int, reply: ClientReply
    ) -> None:
        """Leads a request that was admitted through the engines; cancelled when its client goes.

        Args:
            path: of the API.
            headers: by lower-case name.
            body: as the client wrote it.
            arrival: ps of the router's clock.
            reply: gets an answer, whatever happens.
        """
        request: Request | None = None
        try:
            request = parse(path, body, headers, self.service.cluster.model, arrival)
            reply.name(request.id)
            await self._route(request, reply)
        except Refused as error:
            await self.refuse(reply, error)
        except Exception:
            log.exception("request %s", request.id if request else "")
            if not reply.begun:
                said = "the router failed; its log says more"
                await self.refuse(reply, Refused(said, status=500, kind="internal_error"))
            elif not reply.ended:
                reply.put(error_event("the router failed; its log says more"), True)
                await reply.end()

    async def _route(self, request: Request, reply: Reply) -> None:
        service = self.service
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
        except Exception as error:
            service.relay.failed(request, error)
            raise
        await service.relay.run(request, reply)

    async def refuse(self, reply: ClientReply, error: Refused) -> None:
        """Tells a client why not, unless its answer has begun; counted, also where no record tells of it."""
        self.service.metrics.refused(error.status)
        if not reply.begun:
            wait = error.retry_after_s
            await reply.whole(error.status, error.body, ((b"retry-after", b"%d" % wait),) if wait is not None else ())


def check_length(request: Request, most: int) -> None:
    """Refuses what no engine would take.

    Raises:
        Refused: the prompt alone, or with the output that the client wants, is longer than the context limit.
    """
    if most and request.prompt + (request.limit or 1) > most:
        output = f" and {request.limit} output tokens" if request.limit else ", which leaves none for output"
        text = f"the request has {request.prompt} prompt tokens{output}; the model's context limit is {most} tokens"
        raise Refused(text, param="messages" if request.chat else "prompt")


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], most: int) -> bytes:
    """The body of a request.

    Raises:
        Refused: it is larger than `most` bytes.
        ClientGone: the client left before it was whole.
    """
    told = headers.get(b"content-length", b"")
    if told.isdigit() and int(told) > most:
        raise too_large(most)
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
            raise too_large(most)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _within(body: bytes, most: int) -> bytes:
    if len(body) > most:
        raise too_large(most)
    return body


def too_large(most: int) -> Refused:
    """A body is larger than the router takes."""
    return Refused(f"the body is larger than {most} bytes, the most this router takes", status=413)
