"""One engine of the plain simulator: its queue, its blocks, its passes and steps (docs/model.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from ..cluster import EngineSpec
from .reference_outcome import Facts


class Phase(Enum):
    """Where a request is in its life."""

    FUTURE = auto()  # not arrived, or lost and about to be routed again
    QUEUED = auto()  # waits for its first prefill
    PREFILLING = auto()  # runs on a prefill instance
    OFFERED = auto()  # waits for blocks on its decode instance; its prefill blocks are held
    IN_TRANSIT = auto()  # blocks reserved, pull booked; its prefill blocks are held
    ARRIVED = auto()  # transferred, has not joined
    RUNNING = auto()  # runs on a decode or mixed instance (decodes, or is prefilled locally)
    PREEMPTED = auto()  # waits to be prefilled again
    ENDED = auto()  # finished, failed or rejected


@dataclass(eq=False)
class Request:
    """One request and its present attempt; times in ps, −1 while not reached."""

    index: int
    arrival: int
    prompt: int
    output: int
    slo: int
    router: int
    preemptions: int = 0
    reroutes: int = 0

    def __post_init__(self) -> None:
        """Starts the first attempt."""
        self.forget_attempt()

    def forget_attempt(self) -> None:
        """Back to the state of a request that has not arrived."""
        self.phase = Phase.FUTURE
        self.prefill: Instance | None = None
        self.decode: Instance | None = None
        self.predicted = -1
        self.generated = 0
        self.computed = 0  # tokens of the local prefill under way that are done
        self.to_compute = 0  # tokens of the local prefill under way; 0 while decoding
        self.prefill_start = self.prefill_end = -1
        self.reserve = self.transfer_start = self.transfer_end = -1
        self.first_token = self.last_token = self.end = -1
        self.max_stall = 0
        self.pull_end = -1  # when the pull under way will end

    @property
    def known(self) -> int:
        """Prompt tokens and generated tokens, the next one to feed included."""
        return self.prompt + self.generated

    @property
    def decoding(self) -> bool:
        """Whether this running request decodes (rather than being prefilled locally)."""
        return self.to_compute == 0

    def emit(self, now: int) -> None:
        """One output token comes out."""
        if self.generated == 0:
            self.first_token = now
        else:
            self.max_stall = max(self.max_stall, now - self.last_token)
        self.last_token = now
        self.generated += 1


@dataclass
class Chunk:
    """Prefill tokens start … end − 1 of a request."""

    request: Request
    start: int
    end: int


@dataclass
class Step:
    """What one step computes and when it ends."""

    decodes: list[Request] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    end: int = -1


@dataclass
class Lease:
    """Blocks that stay held until a time although no request needs them."""

    until: int
    blocks: int


@dataclass(eq=False)
class Instance:
    """One engine.

    Attributes:
        index: global index.
        pool_index: index within its pool.
        running: in the order of joining.
        reserved: requests in transit or arrived, in the order of their reservation.
        waiting: the queue, head first.
        blocks: KV blocks by the request that holds them here.
        leases: KV blocks that no request holds any more, but a lease does.
        step: the step in progress, None when idle.
        egress_free_at: when the egress server has served all booked pulls, ps.
    """

    index: int
    pool_index: int
    role: Literal["prefill", "decode", "mixed"]
    engine: EngineSpec
    facts: Facts
    state: Literal["up", "draining", "down"] = "up"
    running: list[Request] = field(default_factory=list)
    reserved: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    blocks: dict[Request, int] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    step: Step | None = None
    egress_free_at: int = 0

    @property
    def used(self) -> int:
        """KV blocks that are not free."""
        return sum(self.blocks.values()) + sum(lease.blocks for lease in self.leases)

    @property
    def free(self) -> int:
        """KV blocks that are free."""
        return self.engine.num_blocks - self.used

    def poll(self) -> tuple[int, int, int]:
        """Used blocks, running and waiting requests, as the engine's metrics report them."""
        if self.state == "down":
            return 0, 0, 0
        return self.used, len(self.running), len(self.waiting) + len(self.reserved)

    # --- a scheduling pass --------------------------------------------------------------------------

    def make_pass(self, now: int) -> list[Request]:
        """One scheduling pass; a step starts if there is work.

        Returns:
            The offered requests whose blocks it reserved, in order: their pulls start now.
        """
        step = Step()
        reserved: list[Request] = []
        if self._run_running(step):
            if not self.running:
                self.facts.repeated_passes += 1
                return self.make_pass(now)
        else:
            self._join_arrived(step)
            reserved = self._serve_waiting(step, now)
        if step.decodes or step.chunks:
            self._start_step(step, now)
        return reserved

    def _run_running(self, step: Step) -> bool:
        """Rule 1: running sequences get tokens and blocks, oldest first; says whether it preempted."""
        preempted = False
        done = 0
        while done < len(self.running):
            request = self.running[done]
            if request.decoding:
                covers = request.known
            else:
                covers = min(request.to_compute, request.computed + self._budget(step))
            more = self.engine.blocks(covers) - self.blocks[request]
            if more > self.free:
                self._preempt(self.running[-1])
                preempted = True
                continue
            self.blocks[request] += max(0, more)
            if request.decoding:
                step.decodes.append(request)
            else:
                step.chunks.append(Chunk(request, request.computed, covers))
            done += 1
        return preempted

    def _preempt(self, victim: Request) -> None:
        """The newest running sequence goes back to the head of the queue, without its KV."""
        self.running.remove(victim)
        del self.blocks[victim]
        victim.computed = victim.to_compute = 0
        victim.phase = Phase.PREEMPTED
        victim.preemptions += 1
        self.waiting.insert(0, victim)
        self.facts.preemptions += 1

    def _join_arrived(self, step: Step) -> None:
        """Rule 3: transferred requests join; those in transit are passed over."""
        for request in list(self.reserved):
            if not self._may_join(step):
                return
            if request.phase is Phase.ARRIVED:
                self.reserved.remove(request)
                self.running.append(request)
                request.phase = Phase.RUNNING
                step.decodes.append(request)

    def _serve_waiting(self, step: Step, now: int) -> list[Request]:
        """Rule 4: reserves for offered requests and starts local prefills, until the head does not fit."""
        reserved: list[Request] = []
        while self.waiting:
            head = self.waiting[0]
            if not self._may_join(step):
                self.facts.running_limit += len(self.running) >= self.engine.max_num_seqs
                break
            if self.engine.blocks(head.known) > self.free:
                self.facts.blocked_reservation += head.phase is Phase.OFFERED
                self.facts.blocked_prefill += head.phase is not Phase.OFFERED
                break
            self.waiting.pop(0)
            if head.phase is Phase.OFFERED:
                self.blocks[head] = self.engine.blocks(head.known)
                self.reserved.append(head)
                head.phase = Phase.IN_TRANSIT
                head.reserve = now
                reserved.append(head)
            else:
                self._start_prefill(head, step)
        return reserved

    def _start_prefill(self, request: Request, step: Step) -> None:
        """The request joins with the first chunk of all its known tokens."""
        chunk = min(request.known, self._budget(step))
        if chunk < request.known:
            self.facts.chunked += 1
            self.facts.chunked_recomputes += request.phase is Phase.PREEMPTED
        request.computed, request.to_compute = 0, request.known
        request.phase = Phase.PREFILLING if self.role == "prefill" else Phase.RUNNING
        self.blocks[request] = self.engine.blocks(chunk)
        self.running.append(request)
        step.chunks.append(Chunk(request, 0, chunk))

    def _budget(self, step: Step) -> int:
        """Tokens that the step can still take."""
        taken = len(step.decodes) + sum(chunk.end - chunk.start for chunk in step.chunks)
        return self.engine.max_num_batched_tokens - taken

    def _may_join(self, step: Step) -> bool:
        return len(self.running) < self.engine.max_num_seqs and self._budget(step) > 0

    # --- a step -------------------------------------------------------------------------------------

    def _start_step(self, step: Step, now: int) -> None:
        """Rule 5."""
        step.end = now + self.engine.step_time(
            decodes=len(step.decodes),
            context=sum(request.known for request in step.decodes),
            tokens=sum(chunk.end - chunk.start for chunk in step.chunks),
            squares=sum(chunk.end**2 - chunk.start**2 for chunk in step.chunks),
        )
        for chunk in step.chunks:
            if chunk.request.prefill_start < 0:
                chunk.request.prefill_start = now
        self.facts.mixed_steps += bool(step.decodes and step.chunks)
        self.step = step

    def end_step(self, now: int) -> tuple[list[Request], list[Request]]:
        """Ends the step in progress.

        Returns:
            The requests that finished here, and (on a prefill instance) the prompts that are complete,
            in the order in which they joined; the blocks of the latter stay held.
        """
        assert self.step is not None
        step, self.step = self.step, None
        emitting = list(step.decodes)
        prompts: list[Request] = []
        for chunk in step.chunks:
            request = chunk.request
            request.computed = chunk.end
            if request.computed < request.to_compute:
                continue
            request.computed = request.to_compute = 0
            if self.role == "prefill":
                request.prefill_end = now
                self.running.remove(request)
                prompts.append(request)
            else:
                if self.role == "mixed" and request.generated == 0:
                    request.prefill_end = now
                emitting.append(request)
        finished: list[Request] = []
        for request in emitting:
            request.emit(now)
            if request.generated == request.output:
                self.running.remove(request)
                del self.blocks[request]
                finished.append(request)
        return finished, prompts

    # --- failures -----------------------------------------------------------------------------------

    def go_down(self) -> None:
        """Loses everything: queue, KV, the step in progress and the egress bookings."""
        self.state = "down"
        self.running, self.reserved, self.waiting = [], [], []
        self.blocks, self.leases = {}, []
        self.step = None
        self.egress_free_at = 0

    def drop(self, request: Request) -> None:
        """Forgets a request that was lost elsewhere; its blocks here are free."""
        for queue in (self.running, self.reserved, self.waiting):
            if request in queue:
                queue.remove(request)
        self.blocks.pop(request, None)

    def keep_until(self, until: int, request: Request) -> None:
        """The request's blocks stay held until a time, whatever becomes of the request."""
        self.leases.append(Lease(until, self.blocks.pop(request)))
        self.facts.leases += 1
