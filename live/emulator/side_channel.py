"""The side channel: how a decode engine reaches the KV of a prefill engine.

One TCP connection from each decode engine to each prefill engine, one JSON object a line. A decode engine sends

    {"pull": REQUEST, "engine": ENGINE_ID, "blocks": [...], "ago": PS, "n": N}   answered under the same n
    {"beat": [REQUEST, ...]}                                                      leases go on
    {"drop": REQUEST}                                                             will not be pulled

`ago` is how long ago the pull started, in engine time: the two engines have no clock in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import orjson

from .egress import Booking

Message = dict[str, Any]


class PullFailed(Exception):
    """KV could not be pulled.

    Attributes:
        reached: whether the prefill engine was ever reached; if not, it is noticed only after a timeout.
    """

    def __init__(self, text: str, *, reached: bool) -> None:
        super().__init__(text)
        self.reached = reached


class Lines(asyncio.Protocol):
    """One end of a connection that carries JSON lines."""

    def __init__(self, receive: Callable[[Message, Lines], None], lost: Callable[[Lines], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._rest = b""
        self.transport: asyncio.Transport | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Takes the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with suppress(orjson.JSONDecodeError):
                message = orjson.loads(line)
                if isinstance(message, dict):
                    self._receive(message, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone."""
        self.open = False
        self._lost(self)

    def send(self, message: Message) -> None:
        """Sends one line; nothing when the other end is gone."""
        if self.open and self.transport is not None:
            self.transport.write(orjson.dumps(message) + b"\n")

    def abort(self) -> None:
        """Cuts the connection."""
        if self.transport is not None:
            self.transport.abort()


class Channel:
    """A decode engine's connection to one prefill engine; made when it is needed, and again after it was lost.

    Args:
        host: of the side channel.
        port: of the side channel.
        lost: called when the connection is lost.
    """

    def __init__(self, host: str, port: int, lost: Callable[[Channel], None]) -> None:
        self._host, self._port = host, port
        self._lost = lost
        self._lines: Lines | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._count = 0
        self._engines: set[str] = set()

    def knows(self, engine_id: str) -> bool:
        """Whether KV was pulled from this engine before."""
        return engine_id in self._engines

    async def pull(
        self, request_id: str, engine_id: str, blocks: list[int], ago: Callable[[], int]
    ) -> tuple[Booking, int]:
        """Asks for the KV of a request.

        Args:
            request_id: the prefill engine's name for it.
            engine_id: the prefill engine that must be there.
            blocks: block numbers.
            ago: how long ago the pull started, ps.

        Returns:
            When the pull is served, and the digest of what was read.

        Raises:
            PullFailed: the engine is not there, or another one is.
        """
        known = self.knows(engine_id)
        try:
            lines = await self._connected()
        except (OSError, TypeError, ValueError, OverflowError) as error:  # parameters may hold anything
            raise PullFailed(f"side channel {self._host}:{self._port}: {error}", reached=known) from error
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        pull = {"pull": request_id, "engine": engine_id, "blocks": blocks, "ago": ago(), "n": self._count}
        lines.send(pull)
        message = await answer
        if "error" in message:
            raise PullFailed(str(message["error"]), reached=True)
        self._engines.add(engine_id)
        return Booking(message["wait"], message["service"], message["latency"]), int(message["kv"], 16)

    async def send(self, message: Message) -> None:
        """Sends a message that has no answer; nothing when nobody is there."""
        with suppress(OSError, TypeError, ValueError, OverflowError):
            (await self._connected()).send(message)

    def close(self) -> None:
        """Cuts the connection."""
        if self._lines is not None:
            self._lines.abort()

    async def _connected(self) -> Lines:
        async with self._connecting:
            if self._lines is None or not self._lines.open:
                loop = asyncio.get_running_loop()
                _, self._lines = await loop.create_connection(
                    lambda: Lines(self._received, self._was_lost), self._host, self._port
                )
            return self._lines

    def _received(self, message: Message, _: Lines) -> None:
        answer = self._answers.pop(message.get("n", -1), None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _was_lost(self, _: Lines) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(PullFailed("the connection was lost", reached=True))
        self._lost(self)
