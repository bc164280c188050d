"""The prefill side of two legs: KV is held on a lease, and sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import leases
from .egress import Egress
from .engine_loop import EngineLoop
from .faults import Faults
from .generation import Generation
from .kv_memory import KvMemory
from .side_channel import Lines, Message


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
        until = self._loop.clock.now() + leases.extension(self._spec)
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
            again = max(held.expiry, time + leases.beat_interval(self._spec))
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
