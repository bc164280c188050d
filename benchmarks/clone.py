"""How long it takes to copy the state of a cluster."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

import numpy as np

from ..envs.simulator import Simulator, entries, run_policy
from ..policies import registry
from .drive import Drive, Say
from .measurement import Result, at_least, count_name, pinned

TOPOLOGY = "2P4D"
SEARCHED = 200_000
"""Requests of the trace in which the moment with the most requests in flight is sought."""

LEAD = 2_000
"""Requests before that moment that are simulated to get there."""


def measure(
    rate: float,
    *,
    in_flight: int = 300,
    times: int = 20_000,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Time of a copy at 2P4D, inside compiled code and from Python.

    Args:
        rate: requests per second.
        in_flight: requests in flight in the state that is copied.
        times: copies per repeat, inside compiled code; from Python a hundredth of them.
        repeats: how often that is measured.
        seed: of the trace.
        say: told what is being done.

    Returns:
        `clone/300` (copy into an existing block) and `clone/300/python` (`Simulator.clone`, which also
        allocates, and copies the records of the whole trace), µs.

    Raises:
        ValueError: so many requests are never in flight, or a count is below 1.
    """
    for name, value in (("in_flight", in_flight), ("times", times), ("repeats", repeats)):
        at_least(name, value)
    name = f"clone/{count_name(in_flight)}"
    say(f"{name}: running the cluster until {in_flight} requests are in flight")
    simulator = loaded_simulator(rate, in_flight, seed)
    twin = simulator.clone()
    calls = max(1, times // 100)
    compiled, python = [], []
    with pinned():
        entries.clone_into(simulator.address, twin.address, 1)
        say(name)
        for _ in range(repeats):
            started = perf_counter_ns()
            entries.clone_into(simulator.address, twin.address, times)
            compiled.append((perf_counter_ns() - started) / 1e3 / times)
            started = perf_counter_ns()
            for _ in range(calls):
                simulator.clone()
            python.append((perf_counter_ns() - started) / 1e3 / calls)
    details = {"in_flight": simulator.in_flight, "requests": len(simulator.trace), "rate": rate}
    return [Result.of(name, "µs", compiled, **details), Result.of(f"{name}/python", "µs", python, **details)]


def loaded_simulator(rate: float, in_flight: int, seed: int) -> Simulator:
    """A 2P4D cluster under marginal cost, at a decision that brings `in_flight` requests in flight.

    Its trace is short, because `Simulator.clone` copies the records of all of it.

    Raises:
        ValueError: that never happens in the trace that is searched.
    """
    drive = Drive.make(TOPOLOGY, rate, SEARCHED, seed)
    policy = registry.make("marginal-cost")
    whole = drive.simulator()
    run_policy(whole, policy, seed)
    arrival = drive.trace.arrival
    ended = np.searchsorted(np.sort(whole.records["end"]), arrival, side="right")
    present = np.arange(1, len(arrival) + 1) - ended
    peak = int(present.argmax())
    if present[peak] >= in_flight:
        part = drive.trace.select(slice(max(0, peak - LEAD), peak + 1))
        trace = replace(part, arrival=part.arrival - part.arrival[0])
        simulator = replace(drive, trace=trace).simulator()
        policy.reset(seed)
        while simulator.run():
            simulator.send(*policy.route(simulator.admission()))
            if simulator.in_flight >= in_flight:
                return simulator
    raise ValueError(
        f"in_flight is {in_flight}; at {rate:g} requests/s {TOPOLOGY} had at most {present[peak]} in flight"
    )
