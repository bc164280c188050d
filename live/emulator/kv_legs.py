"""The two legs between engines: a prefill engine holds KV on a lease and sends it, a decode engine pulls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...envs.cluster import PS_PER_S, EngineSpec
from .egress import Egress
from .engine_loop import EngineLoop
from .faults import Faults
from .generation import Generation, Remote
from .kv_memory import KvMemory
from .options import KvLoadFailurePolicy
from .side_channel import Channel, Lines, Message, PullFailed

HANDSHAKE_TIMEOUT_PS = 5 * PS_PER_S
"""Engine time after which a decode engine notices that nobody answers at a side channel."""

BEATS_PER_LEASE = 6
"""A decode engine prolongs leases this often, each time by two thirds of a lease."""


def _beat_interval(spec: EngineSpec) -> int:
    return max(spec.lease // BEATS_PER_LEASE, PS_PER_S // 100)


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


@dataclass(eq=False)
class _Held:
    """KV of a prefill leg that waits for its pull.

    Attributes:
        generation: the prefill leg.
        blocks: where it stands.
        expiry: end of its lease, ps.
        puller: the connection over which it is being pulled.
    """

    generation: Generation
    blocks: list[int]
    expiry: int
    puller: Lines | None = None


class PrefillLegs:
    """What a prefill engine does for decode engines.

    Args:
        loop: the engine.
        engine_id: name of this engine, another one after every start.
        address: host and port of the side channel.
        faults: those that are set.
    """

    def __init__(self, loop: EngineLoop, engine_id: str, address: tuple[str, int], faults: Faults) -> None:
        spec = loop.engine.spec
        self._loop = loop
        self._spec = spec
        self._engine_id = engine_id
        self._address = address
        self._faults = faults
        self._memory = KvMemory(spec.num_blocks)
        self._egress = Egress(spec)
        self._writing: dict[int, list[int]] = {}
        self._held: dict[str, _Held] = {}

    def joined(self, generation: Generation, time: int) -> None:
        """Blocks are given to the prompt."""
        count = self._spec.blocks(generation.prompt_tokens)
        self._writing[generation.key] = self._memory.take(count, generation.prompt, time)

    def prefilled(self, generation: Generation, time: int) -> None:
        """The prompt's KV is held from now on, or freed if no decode leg will come."""
        blocks = self._writing.pop(generation.key)
        listener = generation.listener
        if not generation.hold or listener is None:  # nobody will get to know where the KV is
            self._free(generation, blocks, time)
            if listener is not None:
                listener.finished(generation.reason)
            return
        held = _Held(generation, blocks, time + self._spec.lease)
        self._held[generation.request_id] = held
        self._loop.at(held.expiry, lambda now: self._expire(held, now))
        listener.prefilled(self._parameters(held))

    def reserved(self, generation: Generation, time: int) -> None:
        """Does not happen on a prefill engine."""

    def ended(self, generation: Generation, time: int) -> None:
        """A prefill leg was aborted."""
        blocks = self._writing.pop(generation.key, None)
        if blocks is not None:
            self._memory.give_back(blocks, time)

    def idle(self) -> bool:
        """Whether no KV is held."""
        return not self._held

    @property
    def in_transit(self) -> int:
        """Nothing comes to a prefill engine."""
        return 0

    def restart(self) -> None:
        """All blocks are free."""
        self._memory.clear()
        self._egress.clear()

    def receive(self, message: Message, lines: Lines) -> None:
        """Takes what a decode engine sent."""
        if "pull" in message:
            lines.send(self.pull(message, lines) | {"n": message.get("n")})
        elif "beat" in message:
            self.beat(message["beat"])
        elif "drop" in message:
            self.drop(message["drop"])

    def pull(self, message: Message, lines: Lines) -> Message:
        """Books a pull; says when it is served and what was read."""
        if message["engine"] != self._engine_id:
            return {"error": f"the engine {message['engine']} is not here any more"}
        blocks, now = message["blocks"], self._loop.clock.now()
        slow = self._faults.take("slow_link")
        booking = self._egress.book(len(blocks), now - message["ago"], 1.0 if slow is None else slow.factor or 1.0)
        end = now - message["ago"] + booking.total
        held = self._held.get(message["pull"])
        if held is not None and held.puller is None:
            held.puller = lines
            self._loop.at(end, lambda time: self._sent(held, time))
        else:
            self._loop.at(end, self._sent_too_late)
        kv = self._memory.read(blocks)
        return {"wait": booking.wait, "service": booking.service, "latency": booking.latency, "kv": f"{kv:x}"}

    def beat(self, request_ids: list[str]) -> None:
        """Prolongs leases."""
        until = self._loop.clock.now() + 2 * self._spec.lease // 3
        for request_id in request_ids:
            held = self._held.get(request_id)
            if held is not None:
                held.expiry = max(held.expiry, until)

    def drop(self, request_id: str) -> None:
        """KV that no decode engine will pull is freed."""
        held = self._held.get(request_id)
        if held is not None and held.puller is None:
            self._let_go(held, self._loop.clock.now())

    def lost(self, lines: Lines) -> None:
        """A decode engine is gone: what it was pulling stays held until the lease ends."""
        for held in self._held.values():
            if held.puller is lines:
                held.puller = None

    def _parameters(self, held: _Held) -> dict[str, Any]:
        host, port = self._address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [held.blocks],
            "remote_engine_id": self._engine_id,
            "remote_request_id": held.generation.request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": held.generation.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def _sent(self, held: _Held, time: int) -> None:
        if held.puller is not None and held.generation.request_id in self._held:
            self._let_go(held, time)

    def _sent_too_late(self, time: int) -> None:
        self._loop.measurements.notifications_after_expiry += 1

    def _expire(self, held: _Held, time: int) -> None:
        if self._held.get(held.generation.request_id) is not held:
            return
        if held.puller is not None or held.expiry > time:
            again = max(held.expiry, time + _beat_interval(self._spec))
            self._loop.at(again, lambda now: self._expire(held, now))
        else:
            self._loop.measurements.expired += 1
            self._let_go(held, time)

    def _let_go(self, held: _Held, time: int) -> None:
        del self._held[held.generation.request_id]
        self._free(held.generation, held.blocks, time)

    def _free(self, generation: Generation, blocks: list[int], time: int) -> None:
        self._loop.release(generation, time)
        self._memory.give_back(blocks, max(time, 0))


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
        limit = None if known else clock.seconds_until(start + HANDSHAKE_TIMEOUT_PS)
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
        self._loop.at(time + _beat_interval(self._loop.engine.spec), self._beat)

    def _channel(self, remote: Remote) -> Channel:
        assert remote.host is not None and remote.port is not None
        address = remote.host, remote.port
        if address not in self._channels:
            self._channels[address] = Channel(*address, self._lost)
        return self._channels[address]

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
