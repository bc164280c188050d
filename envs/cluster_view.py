"""What a cluster looks like at one moment, for people: true state, which no router sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .cluster import PS_PER_S
from .simulator import Simulator, engine_entries
from .simulator import layout as L
from .trace import SLO_CLASSES

State = Literal["down", "up", "draining"]

STATES: tuple[State, ...] = ("down", "up", "draining")
"""By their numbers in the core."""


@dataclass(frozen=True)
class InstanceView:
    """One instance.

    Attributes:
        role: prefill, decode or mixed.
        index: within its pool.
        state: up, draining (nothing new is assigned) or down.
        kv_used: KV blocks in use, held and reserved ones included.
        kv_capacity: KV blocks.
        running: sequences in the step: being prefilled or decoding.
        running_limit: most of them.
        queued: requests that wait to be prefilled here; on a decode instance those that wait for blocks, and
            preempted ones.
        held: on a prefill instance, prompts that are done and whose transfer has not started.
        in_transit: requests whose KV is on its way, from a prefill or to a decode instance.
        arrived: on a decode instance, requests whose KV is there and that join at the next step.
        committed: requests that the routers have assigned here and that their ledgers still count.
    """

    role: str
    index: int
    state: State
    kv_used: int
    kv_capacity: int
    running: int
    running_limit: int
    queued: int
    held: int
    in_transit: int
    arrived: int
    committed: int

    @property
    def name(self) -> str:
        """`role/index`, as in cluster files."""
        return f"{self.role}/{self.index}"


@dataclass(frozen=True)
class PendingView:
    """The request that awaits its instances.

    Attributes:
        request: index in the trace.
        slo: name of its class.
        prompt: tokens.
        predicted: ô, tokens.
        ttft_target: s.
        tpot_target: s.
    """

    request: int
    slo: str
    prompt: int
    predicted: int
    ttft_target: float
    tpot_target: float


@dataclass(frozen=True)
class ClusterView:
    """A cluster at one moment.

    Attributes:
        time: s.
        instances: prefill, then decode; or mixed.
        in_flight: requests that have arrived and not ended.
        ended: requests that have ended.
        pending: the request that awaits a decision, or None.
        action: the last decision, a prefill and a decode index (aggregated: the same twice), or None.
        reward: sum of the rewards so far, or None.
        goodput: share of the requests judged so far that met their targets, or None.
    """

    time: float
    instances: tuple[InstanceView, ...]
    in_flight: int
    ended: int
    pending: PendingView | None = None
    action: tuple[int, int] | None = None
    reward: float | None = None
    goodput: float | None = None

    def pool(self, role: str) -> tuple[InstanceView, ...]:
        """The instances of one role."""
        return tuple(instance for instance in self.instances if instance.role == role)

    @property
    def pools(self) -> dict[str, tuple[InstanceView, ...]]:
        """The instances by role; roles without any are left out."""
        return {role: pool for role in ("prefill", "decode", "mixed") if (pool := self.pool(role))}

    def chosen(self, instance: InstanceView) -> bool:
        """Whether the last decision names this instance."""
        return self.action is not None and self.action[0 if instance.role == "prefill" else 1] == instance.index


def view_of(
    simulator: Simulator,
    *,
    action: tuple[int, int] | None = None,
    reward: float | None = None,
    goodput: float | None = None,
) -> ClusterView:
    """The state of a simulator, which is left as it is.

    At a decision, what ends at that instant has ended, and the scheduling passes of that instant are still to come.

    Args:
        simulator: between two steps of a run.
        action: the last decision.
        reward: so far.
        goodput: so far.
    """
    state = _State(simulator)
    return ClusterView(
        time=simulator.now / PS_PER_S,
        instances=tuple(state.instance(i) for i in range(len(simulator.cluster.instances))),
        in_flight=simulator.in_flight - state.leases,
        ended=simulator.ended,
        pending=state.pending(),
        action=action,
        reward=reward,
        goodput=goodput,
    )


class _State:
    """A copy of a state block, read."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.block = simulator.snapshot().block
        self.now = simulator.now
        self.prefills = int(self.block[L.H_PREFILLS])
        self.decodes = int(self.block[L.H_DECODES])
        slots = self.block[int(self.block[L.H_O_SLOTS]) :]
        self.words = slots.reshape(-1, L.SLOT_WORDS)
        self.cells = slots.view(np.int32).reshape(-1, 2 * L.SLOT_WORDS)
        rows = self.block[int(self.block[L.H_O_ENGINES]) :]
        self.rows = rows[: L.ENGINE_WORDS * len(simulator.cluster.instances)].reshape(-1, L.ENGINE_WORDS)
        self.held = np.zeros(max(self.prefills, 1), np.int64)
        for d in range(self.decodes):
            for k in self._list(self.rows[self.prefills + d], L.E_QUEUE, L.S_NEXT):
                place = int(self.cells[k, L.S_PLACE])
                if not place & L.LOCAL:
                    self.held[place & L.PLACE_MASK] += 1
        self.leases = sum(
            bool(self.cells[k, L.S_PLACE] & L.ENDED)
            for p in range(self.prefills)
            for k in self._list(self.rows[p], L.E_RELEASE, L.S_RELEASE)
        )
        """Slots of requests that have failed and whose KV is held until their lease ends."""

    def _list(self, row: npt.NDArray[np.int64], head: int, link: int) -> list[int]:
        """Slots of a list."""
        found, k = [], int(row[head])
        while k >= 0:
            found.append(k)
            k = int(self.cells[k, link])
        return found

    def instance(self, i: int) -> InstanceView:
        """Instance number i of the cluster."""
        engine, row = self.simulator.cluster.instances[i], self.rows[i]
        prefill = i < self.prefills
        role = "prefill" if prefill else "mixed" if self.prefills == 0 else "decode"
        # What an engine reports is its state before an instant. Transfers that end now have ended, passes come later.
        engine_entries.note_usage(self.block.ctypes.data, i, self.now + int(prefill))
        if prefill:
            moving = self._list(row, L.E_RELEASE, L.S_RELEASE)
            moving = [k for k in moving if not self.cells[k, L.S_PLACE] & L.ENDED]
        else:
            moving = self._list(row, L.E_HOLD, L.S_NEXT)
        in_transit = int((self.words[moving, L.SW_TRANSFER] > self.now).sum())
        return InstanceView(
            role=role,
            index=i if prefill else i - self.prefills,
            state=STATES[int(row[L.E_STATE])],
            kv_used=int(row[L.E_POLL_USED]),
            kv_capacity=engine.num_blocks,
            running=int(row[L.E_POLL_RUNNING]),
            running_limit=engine.max_num_seqs,
            queued=int(row[L.E_QUEUED]),
            held=int(self.held[i]) if prefill else 0,
            in_transit=in_transit,
            arrived=0 if prefill else len(moving) - in_transit,
            committed=self._committed(i, prefill),
        )

    def _committed(self, i: int, prefill: bool) -> int:
        """Requests in the ledgers of all routers."""
        at = int(self.block[L.H_O_LEDGER])
        index, group, field = i, L.PRE_GROUP, L.PRE_QUEUED
        if not prefill:
            at += int(self.block[L.H_LEDGER_DECODE])
            index, group, field = i - self.prefills, L.DEC_GROUP, L.DEC_IN_FLIGHT
        word = at + index // L.LANES * group + field + index % L.LANES
        stride = int(self.block[L.H_LEDGER_STRIDE])
        return sum(int(self.block[word + router * stride]) for router in range(int(self.block[L.H_ROUTERS])))

    def pending(self) -> PendingView | None:
        """The request that awaits a decision."""
        slot = int(self.block[L.H_PENDING])
        if slot < 0:
            return None
        cells, trace = self.cells[slot], self.simulator.trace
        request = int(cells[L.S_REQUEST])
        return PendingView(
            request=request,
            slo=SLO_CLASSES[trace.slo[request]],
            prompt=int(cells[L.S_PROMPT]),
            predicted=int(cells[L.S_PREDICTED]),
            ttft_target=int(trace.ttft_target[request]) / PS_PER_S,
            tpot_target=int(trace.tpot_target[request]) / PS_PER_S,
        )
