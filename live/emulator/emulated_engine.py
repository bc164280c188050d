"""An emulated engine, put together: to be used in a program, or as a process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import uuid4

from ...envs.error_text import error_text
from ..compilation import compile_engine
from .api import Api
from .clock import Alarm, EngineClock
from .decode_legs import DecodeLegs, LocalLegs
from .engine_loop import EngineLoop
from .faults import ONCE, Fault, Faults
from .http_server import HttpServer
from .measurements import Measurements
from .options import EngineOptions
from .prefill_legs import PrefillLegs
from .side_channel import Lines, Message

_log = logging.getLogger(__name__)


class EmulatedEngine:
    """An engine that listens while its `async with` block runs.

    Args:
        options: what it is.
        crashed: called with the reason when the engine dies of itself; by default it only stops to answer.

    Attributes:
        options: what it is.
        url: where its API is, once it listens.
        engine_id: its name in `kv_transfer_params`; another one after every start.
        side_channel_port: where its KV is pulled from, once it listens; None unless it is a prefill engine.
        crash_reason: why it died, if it did.

    Raises:
        ValueError: an unknown profile, or a value out of range.
    """

    url: str
    side_channel_port: int | None = None
    crash_reason: str | None = None

    def __init__(self, options: EngineOptions, crashed: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.engine_id = str(uuid4())
        self._spec = options.spec()
        self._crashed = crashed
        self._faults = Faults(fault for fault in options.faults if fault.kind not in ONCE)
        self._side_channel: asyncio.Server | None = None
        self._decoders: set[Lines] = set()
        self._stall_ends: asyncio.TimerHandle | None = None
        self._delayed: list[tuple[Message, Lines]] = []
        self._stopped = False

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            OSError: a port is taken.
        """
        options = self.options
        loop = asyncio.get_running_loop()
        compile_engine()  # the first request does not wait for the compiled code
        clock = EngineClock(options.time_scale)
        counts = Measurements(self._spec, options.role, options.served_model(), clock)

        def soon(action: Callable[[], None]) -> None:
            loop.call_soon(self._safely, action)

        def alarm(ring: Callable[[], None]) -> Alarm:
            self._alarm = Alarm(lambda: self._safely(ring))
            return self._alarm

        self._loop = EngineLoop(self._spec, options.role, clock, soon, alarm, counts)
        self._api = Api(
            self._loop, options.served_model(), self._faults, self._happen, self._go_on, hazards=options.hazards
        )
        self._server = HttpServer(self._api.handle)
        if options.role == "prefill":
            await self._open_side_channel()
        elif options.role == "decode":
            block_bytes = options.kv_bytes_per_block()
            self._loop.legs = DecodeLegs(self._loop, options.kv_load_failure_policy, block_bytes, self.crash)
        else:
            self._loop.legs = LocalLegs()
        port = await self._server.listen(options.host, options.port)
        self.url = f"http://{options.host}:{port}"
        for fault in options.faults:
            if fault.kind in ONCE:
                self._happen(fault)

    async def stop(self, grace: float = 0.0) -> None:
        """Stops to listen; requests that run have `grace` wall seconds to end."""
        self._server.close()
        limit = asyncio.get_running_loop().time() + grace
        while len(self._loop) and self._server.connections and asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(0.01)
        self._cut()

    def crash(self, reason: str) -> None:
        """Dies at once: all connections break off, and nothing is answered any more."""
        if self.crash_reason is None and not self._stopped:
            self.crash_reason = reason
            self._cut()
            if self._crashed is not None:
                self._crashed(reason)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --------------------------------------------------------------------------------------------------

    def _safely(self, action: Callable[[], None]) -> None:
        """Does what the engine does by itself; an error there ends it, since nothing would go on."""
        try:
            action()
        except Exception as error:
            _log.exception("the engine cannot go on")  # crash() may end the process, and the exception with it
            self.crash(error_text(error))
            raise

    async def _open_side_channel(self) -> None:
        options = self.options

        def lost(lines: Lines) -> None:
            self._decoders.discard(lines)
            legs.lost(lines)

        def lines() -> Lines:
            made = Lines(self._receive, lost)
            self._decoders.add(made)
            return made

        self._side_channel = await asyncio.get_running_loop().create_server(
            lines, options.side_channel_host, options.side_channel_port
        )
        self.side_channel_port = int(self._side_channel.sockets[0].getsockname()[1])
        address = options.side_channel_host, self.side_channel_port
        legs = self._loop.legs = PrefillLegs(self._loop, self.engine_id, address, self._faults)

    def _happen(self, fault: Fault) -> None:
        """Does what a fault does that happens at once."""
        if fault.kind == "crash":
            self.crash("it was told to")
        else:
            assert fault.seconds is not None
            self._stall(fault.seconds)

    def _stall(self, seconds: float) -> None:
        """Nothing advances for this many engine seconds."""
        self._loop.clock.stop()
        if self._stall_ends is not None:
            self._stall_ends.cancel()
        loop = asyncio.get_running_loop()
        self._stall_ends = loop.call_later(seconds * self.options.time_scale, self._go_on)

    def _go_on(self) -> None:
        self._loop.clock.go()
        self._loop.wake()
        self._api.go_on()
        delayed, self._delayed = self._delayed, []
        for message, lines in delayed:
            self._receive(message, lines)

    def _receive(self, message: Message, lines: Lines) -> None:
        """Takes a message from the side channel."""
        if self._loop.clock.stopped:
            self._delayed.append((message, lines))
        elif isinstance(self._loop.legs, PrefillLegs):
            self._loop.legs.receive(message, lines)

    def _cut(self) -> None:
        self._stopped = True
        self._loop.clock.stop()
        self._alarm.close()
        if self._stall_ends is not None:
            self._stall_ends.cancel()
        self._server.cut()
        if self._side_channel is not None:
            self._side_channel.close()
        for lines in list(self._decoders):
            lines.abort()
        if isinstance(self._loop.legs, DecodeLegs):
            self._loop.legs.close()
