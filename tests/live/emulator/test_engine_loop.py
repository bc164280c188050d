"""Two emulated engines, by a clock that is set by hand, do to the picosecond what the simulator says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import profiles, workloads
from disaggroute.envs.cluster import PS_PER_S, Cluster, EngineSpec
from disaggroute.envs.simulator import simulate
from disaggroute.envs.trace import Trace
from disaggroute.live.emulator import engine_loop
from disaggroute.live.emulator.clock import EngineClock
from disaggroute.live.emulator.decode_legs import DecodeLegs, LocalLegs
from disaggroute.live.emulator.egress import Booking
from disaggroute.live.emulator.engine_loop import EngineLoop
from disaggroute.live.emulator.faults import Faults
from disaggroute.live.emulator.generation import Generation, Remote
from disaggroute.live.emulator.measurements import Measurements
from disaggroute.live.emulator.options import Role
from disaggroute.live.emulator.prefill_legs import PrefillLegs
from disaggroute.live.emulator.side_channel import Lines

from ...differential.cases import random_case
from ...differential.scenarios import engine


class HandClock(EngineClock):
    """A clock that is set by hand, ps."""

    time = 0

    def now(self) -> int:
        return self.time

    def restart(self) -> None:
        self.time = 0


class NoTimer:
    """Wakes nobody: the test looks when something is due."""

    def set(self, seconds: float) -> None: ...

    def unset(self) -> None: ...


class Direct:
    """A side channel without a network."""

    def __init__(self, source: PrefillLegs) -> None:
        self.source = source
        self.line = Lines(lambda *_: None, lambda _: None)

    def knows(self, engine_id: str) -> bool:
        return True

    async def pull(
        self, request_id: str, engine_id: str, blocks: list[int], ago: Callable[[], int]
    ) -> tuple[Booking, int]:
        message = {"pull": request_id, "engine": engine_id, "blocks": blocks, "ago": ago()}
        answer = self.source.pull(message, self.line)
        return Booking(answer["wait"], answer["service"], answer["latency"]), int(answer["kv"], 16)

    async def send(self, message: dict[str, Any]) -> None:
        self.source.receive(message, self.line)


class DirectLegs(DecodeLegs):
    """The decode side of a direct side channel."""

    source: PrefillLegs

    def _channel(self, remote: Remote) -> Any:
        return Direct(self.source)

    async def settle(self) -> None:
        """Waits for the messages that are under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks)


@dataclass
class Client:
    """A client of both legs, who takes no time."""

    pair: Pair
    index: int
    output: int
    params: dict[str, Any] | None = None
    said: list[int] = field(default_factory=list)
    reason: str = ""

    def prefilled(self, parameters: dict[str, Any]) -> None:
        self.pair.second_leg(self, parameters)

    def came(self, new: Sequence[int]) -> None:
        self.said += new

    def finished(self, reason: str) -> None:
        self.reason = reason

    def failed(self) -> None:
        raise AssertionError("no pull fails here")


class Pair:
    """A prefill and a decode engine with one clock."""

    def __init__(self, first: EngineSpec, second: EngineSpec) -> None:
        self.clock = HandClock(1.0)
        self.first, self.second = self._loop(first, "prefill"), self._loop(second, "decode")
        source = PrefillLegs(self.first, "first", ("here", 1), Faults())
        self.legs = DirectLegs(self.second, "fail", 1, self._crash)
        self.legs.source = source
        self.first.legs, self.second.legs = source, self.legs
        self.prefills: dict[int, Generation] = {}
        self.decodes: dict[int, Generation] = {}

    def _loop(self, spec: EngineSpec, role: Role) -> EngineLoop:
        counts = Measurements(spec, role, "model", self.clock)
        return EngineLoop(spec, role, self.clock, lambda _: None, lambda _: NoTimer(), counts)

    def _crash(self, reason: str) -> None:
        raise AssertionError(reason)

    def arrive(self, index: int, prompt: int, output: int) -> None:
        client = Client(self, index, output)
        self.prefills[index] = Generation(f"p{index}", prompt, index, 1, client, hold=True)
        self.first.submit(self.prefills[index])

    def second_leg(self, client: Client, parameters: dict[str, Any]) -> None:
        prompt = self.prefills[client.index].prompt_tokens
        remote = Remote.of(parameters)
        leg = Generation(f"d{client.index}", prompt, client.index, client.output, client, remote=remote, watched=True)
        self.decodes[client.index] = leg
        self.second.submit(leg)
        self.legs.submitted(leg)

    async def run(self, trace: Trace) -> None:
        arrivals = trace.arrival.tolist()
        due = 0
        while True:
            times = [t for t in (self.first.next_time(), self.second.next_time()) if t is not None]
            now = min([*times, *arrivals[due : due + 1]], default=-1)
            if now < 0:
                return
            self.clock.time = now
            while due < len(arrivals) and arrivals[due] == now:
                self.arrive(due, int(trace.prompt[due]), int(trace.output[due]))
                due += 1
            for loop in (self.first, self.second):
                loop.turn()
                await self.legs.settle()


def agrees(trace: Trace, cluster: Cluster) -> Pair:
    """Compares two emulated engines with the simulator's records."""
    zeros = np.zeros(len(trace), np.int64)
    expected = simulate(trace, cluster, assignment=(zeros, zeros)).records
    pair = Pair(cluster.prefill[0], cluster.decode[0])
    asyncio.run(pair.run(trace))
    for i, row in enumerate(expected):
        first, second = pair.prefills[i], pair.decodes[i]
        got = (first.joined, first.first, second.first, second.last, second.preemptions)
        names = ("prefill_start", "prefill_end", "first_token", "last_token", "preemptions")
        assert got == tuple(int(row[name]) for name in names), i
        client = second.listener
        assert isinstance(client, Client)
        answer = Generation("same", 1, i, client.output, None)
        assert client.said == answer.bring_to(client.output) and client.reason == "length"
    assert len(pair.first) == len(pair.second) == 0 and pair.first.legs.idle() and pair.second.legs.idle()
    assert pair.first.usage() == pair.second.usage() == (0, 0, 0)
    return pair


@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 25), tiny=st.booleans())
def test_random_requests_take_the_times_that_the_simulator_gives(seed: int, requests: int, tiny: bool) -> None:
    case = random_case(seed, requests=requests, tiny=tiny, aggregated=False, failures=False)
    latency = None if case.cluster.latency is None else case.cluster.latency[:1, :1]
    first, second = case.cluster.prefill[0], case.cluster.decode[0]
    if latency is not None:
        first = replace(first, latency=int(latency[0, 0]))
    first = replace(first, lease=1 << 58)
    agrees(case.trace, Cluster((first,), (second,)))


def test_a_real_workload_takes_the_times_that_the_simulator_gives() -> None:
    spec = profiles.load("a40-qwen2.5-3b").engine(kv_tokens=12_000)
    trace = workloads.make("mixed-bursty-a40").generate(rate=3.0, duration_s=40.0, seed=3)
    trace = trace.select(trace.prompt + trace.output < 8_000)
    pair = agrees(trace, Cluster((spec,), (spec,)))
    assert pair.first.measurements.expired == 0


def test_a_request_that_queues_for_a_decode_engine_keeps_its_lease() -> None:
    first = profiles.load("a40-qwen2.5-3b").engine(lease_s=2.0)
    second = profiles.load("a40-qwen2.5-3b").engine(lease_s=2.0, max_num_seqs=1)
    lengths = np.array([40, 40], np.int32), np.array([800, 20], np.int32)  # the first decodes for ten seconds
    times, classes = np.array([0, PS_PER_S]), np.zeros(2, np.int8)
    pair = agrees(Trace(times, *lengths, classes, classes, times, times), Cluster((first,), (second,)))
    assert pair.decodes[1].joined - pair.prefills[1].first > 8 * PS_PER_S
    assert pair.first.measurements.expired == pair.first.measurements.notifications_after_expiry == 0


def test_an_idle_engine_starts_its_time_again_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loop, "_RESTART_PS", 1000 * PS_PER_S)
    clock = HandClock(1.0)
    spec = engine()
    counts = Measurements(spec, "mixed", "m", clock)
    loop = EngineLoop(spec, "mixed", clock, lambda _: None, lambda _: NoTimer(), counts)
    loop.legs = LocalLegs()
    clock.time = 2000 * PS_PER_S
    loop.turn()
    assert clock.time == 0
    loop.submit(Generation("a", 4, 1, 2, None))
    clock.time = 100
    loop.turn()
    assert len(loop) == 0
