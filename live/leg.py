"""A leg in flight on an engine, and whose fault it is when it fails."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import orjson

from .engine import Engine
from .sse import error_text

BUSY = (408, 429, 503)
"""Answers of an engine that has too much to do: another may have less, and it is no fault."""

_ADDRESS = re.compile(r"https?://\S+: |\(?'?\d+\.\d+\.\d+\.\d+'?, \d+\)?")

log = logging.getLogger(__name__)


class EngineFault(Exception):
    """An engine failed a leg.

    Args:
        engine: which.
        reason: a sentence.
        shun: whether the next attempt goes elsewhere.
        status: that the client gets if nothing else helps.
    """

    def __init__(self, engine: Engine, reason: str, *, shun: bool = True, status: int = 502) -> None:
        super().__init__(reason)
        self.engine, self.shun, self.status = engine, shun, status

    @property
    def public(self) -> str:
        """The reason without the engine's address, for clients."""
        return _ADDRESS.sub("", str(self))


class ClientFault(Exception):
    """An engine refused what the client wrote; its answer is the client's."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(message_of(body) or f"refused with {status}")
        self.status, self.body = status, body


class Leg:
    """One leg, from its assignment to its end; the engine's breaker is told how it went.

    Use as a context manager: a leg of which nothing was told says nothing about its engine.

    Args:
        engine: to which it is assigned, now. If its breaker lets one request try, that is this one.
        on_change: told when the engine may or may not be sent requests from now on.
    """

    __slots__ = ("_begun", "_on_change", "_streamed", "_ticket", "engine")

    def __init__(self, engine: Engine, on_change: Callable[[Engine], None]) -> None:
        self.engine, self._on_change = engine, on_change
        self._begun = self._streamed = False
        self._ticket = engine.breaker.sent(asyncio.get_running_loop().time())

    def __enter__(self) -> Leg:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """The leg has ended."""
        if self._begun:
            self.engine.leg_ends(self._streamed)
        self.engine.breaker.gave_up(self._ticket)
        if self.engine.breaker.tripped:
            self._on_change(self.engine)

    @property
    def may_begin(self) -> bool:
        """Whether the engine may still be sent it: it may have been ejected since the assignment."""
        return self.engine.may_go_on(self._ticket)

    def begins(self, streamed: bool = False) -> None:
        """The leg is sent; `streamed`: bytes of its answer come all the time."""
        self._begun, self._streamed = True, streamed
        self.engine.leg_begins(asyncio.get_running_loop().time(), streamed)

    def well(self) -> None:
        """The engine does as it should."""
        breaker = self.engine.breaker
        tripped = breaker.tripped
        breaker.succeeded(self._ticket)
        if tripped:
            self._on_change(self.engine)

    def fault(self, reason: str) -> EngineFault:
        """The engine failed; gives the error to raise."""
        if self.engine.breaker.failed(asyncio.get_running_loop().time(), self._ticket):
            log.warning("nothing is sent to %s for a while: %s", self.engine.name, reason)
        self._on_change(self.engine)
        return EngineFault(self.engine, reason)

    def check(self, status: int, body: bytes) -> None:
        """Refuses an answer that is not 200: whose fault is it?

        Raises:
            EngineFault: the engine's, or it is busy.
            ClientFault: the client's.
        """
        if status == 200:
            return
        said = f"answered {status}: {message_of(body) or 'no reason given'}"
        if status in BUSY:
            raise EngineFault(self.engine, said, status=503)
        if 400 <= status < 500:
            self.well()
            raise ClientFault(status, body)
        raise self.fault(said)


def message_of(body: bytes) -> str:
    """What an engine's error says."""
    try:
        said = orjson.loads(body)
    except ValueError:
        return " ".join(body[:200].decode("utf-8", "replace").split())
    if isinstance(said, dict) and "error" in said:
        return error_text(said["error"])
    return error_text(said.get("message") or said.get("detail") if isinstance(said, dict) else said)
