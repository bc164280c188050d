"""The decode side of two legs: KV is pulled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...envs.cluster import PS_PER_S
from ...envs.error_text import error_text
from . import leases
from .engine_loop import EngineLoop
from .generation import Generation, Remote
from .options import KvLoadFailurePolicy
from .side_channel import Channel, PullFailed

HANDSHAKE_TIMEOUT_PS = 5 * PS_PER_S
"""Engine time after which a decode engine notices that nobody answers at a side channel."""

HANDSHAKE_LEAST_S = 5.0
"""Wall seconds that a side channel has to answer if somebody is there: a network does not follow the time scale."""


class LocalLegs:
    """The legs of an engine that does whole requests: there is nothing to hold or to pull."""

    def joined(self, generation: Generation, time: int) -> None:
        """Nothing to do."""

    def prefilled(self, generation: Generation, time: int) -> None:
        """Nothing to do."""

    def reserved(self, generation: Generation, time: int) -> None:
        """Nothing to do."""

    def ended(self, generation: Generation, time: int) -> None:
        """Nothing to do."""

    def idle(self) -> bool:
        """Always."""
        return True

    @property
    def in_transit(self) -> int:
        """Nothing is."""
        return 0

    def restart(self) -> None:
        """Nothing to do."""


class DecodeLegs(LocalLegs):
    """What a decode engine does with prefill engines.

    Args:
        loop: the engine.
        policy: what becomes of a request whose KV cannot be pulled.
        block_bytes: bytes of a block.
        crash: ends the engine as an unhandled error would.
    """

    def __init__(
        self, loop: EngineLoop, policy: KvLoadFailurePolicy, block_bytes: int, crash: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._policy = policy
        self._block_bytes = block_bytes
        self._crash = crash
        self._channels: dict[tuple[str, int], Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, Generation] = {}  # their leases are prolonged
        self._moving: dict[int, tuple[Channel, Generation]] = {}
        self._reserved: set[int] = set()
        self._beating = False

    @property
    def in_transit(self) -> int:
        """Requests whose blocks are reserved and that do not run yet."""
        return len(self._reserved)

    def joined(self, generation: Generation, time: int) -> None:
        """Its KV is here."""
        self._reserved.discard(generation.key)

    def submitted(self, generation: Generation) -> None:
        """A decode leg came: its lease is prolonged from now on."""
        if generation.remote is not None and not generation.remote.missing():
            self._waiting[generation.key] = generation
            if not self._beating:
                self._beating = True
                self._beat(self._loop.clock.now())

    def reserved(self, generation: Generation, time: int) -> None:
        """The pull starts, if what it needs is there."""
        remote = generation.remote
        if remote is None:
            return
        self._reserved.add(generation.key)
        if not remote.blocks:
            self._crash(f"request {generation.request_id}: its KV is remote, but remote_block_ids names none of it")
        elif not remote.missing():  # else it waits for ever
            generation.pulling = True
            self._do(self._pull(generation, remote, time))

    def ended(self, generation: Generation, time: int) -> None:
        """A decode leg was aborted."""
        self._reserved.discard(generation.key)
        self._waiting.pop(generation.key, None)
        self._moving.pop(generation.key, None)
        remote = generation.remote
        if remote is not None and not generation.pulling and generation.joined < 0:
            self.drop(remote)

    def aborting(self, generation: Generation) -> None:
        """A client is gone. A request that waits for KV without a name takes the engine with it."""
        remote = generation.remote
        if remote is not None and remote.missing() and generation.joined < 0:
            self._crash(f"request {generation.request_id} was aborted while it waited for KV that has no name")

    def drop(self, remote: Remote) -> None:
        """Tells a prefill engine that its KV is not wanted."""
        if not remote.missing():
            self._do(self._channel(remote).send({"drop": remote.request_id}))

    def idle(self) -> bool:
        """Whether nothing is waited for."""
        return not self._waiting and not self._moving

    def close(self) -> None:
        """Cuts all connections."""
        for task in self._tasks:
            task.cancel()
        for channel in self._channels.values():
            channel.close()

    async def _pull(self, generation: Generation, remote: Remote, start: int) -> None:
        clock = self._loop.clock
        channel = self._channel(remote)
        assert remote.request_id is not None and remote.engine_id is not None and remote.blocks is not None
        known = channel.knows(remote.engine_id)
        limit = None if known else max(HANDSHAKE_LEAST_S, clock.seconds_until(start + HANDSHAKE_TIMEOUT_PS))
        ago: Callable[[], int] = lambda: clock.now() - start  # noqa: E731
        try:
            async with asyncio.timeout(limit):
                booking, kv = await channel.pull(remote.request_id, remote.engine_id, remote.blocks, ago)
        except (PullFailed, TimeoutError) as error:
            if isinstance(error, PullFailed) and not error.reached:
                await asyncio.sleep(clock.seconds_until(start + HANDSHAKE_TIMEOUT_PS))
            self._failed(generation)
            return
        self._waiting.pop(generation.key, None)
        if generation.key not in self._loop.engine:
            return  # aborted meanwhile
        end = start + booking.total
        generation.has_pulled(kv)
        self._moving[generation.key] = channel, generation
        self._loop.at(end, lambda _: self._arrived(generation))
        self._loop.pulled(generation, end)
        seconds = clock.wall_seconds(booking.total)
        self._loop.measurements.transfer(seconds, len(remote.blocks), self._block_bytes)

    def _arrived(self, generation: Generation) -> None:
        self._moving.pop(generation.key, None)

    def _failed(self, generation: Generation) -> None:
        self._waiting.pop(generation.key, None)
        if generation.key not in self._loop.engine:
            return
        self._loop.measurements.failed_transfers += 1
        if self._policy == "recompute":
            self._reserved.discard(generation.key)
            generation.recomputed()
            self._loop.restart_locally(generation)
            return
        listener = generation.listener
        generation.outcome = "error"
        self._loop.abort(generation)
        if listener is not None:
            listener.failed()

    def _lost(self, channel: Channel) -> None:
        for over, generation in list(self._moving.values()):
            if over is channel:
                del self._moving[generation.key]
                self._failed(generation)

    def _beat(self, time: int) -> None:
        self._beating = bool(self._waiting)
        if not self._beating:
            return
        by_channel: dict[Channel, list[str]] = {}
        for generation in self._waiting.values():
            if generation.remote is not None and generation.remote.request_id is not None:
                by_channel.setdefault(self._channel(generation.remote), []).append(generation.remote.request_id)
        for channel, request_ids in by_channel.items():
            self._do(channel.send({"beat": request_ids}))
        self._loop.at(time + leases.beat_interval(self._loop.engine.spec), self._beat)

    def _channel(self, remote: Remote) -> Channel:
        assert remote.host is not None and remote.port is not None
        address = remote.host, remote.port
        if address not in self._channels:
            self._channels[address] = Channel(*address, self._lost)
        return self._channels[address]

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._crash(error_text(error))
