"""How long it takes to copy the state of a cluster."""

from __future__ import annotations

from time import perf_counter_ns

from ..envs.simulator import Simulator, entries
from ..policies import registry
from .drive import Drive, Say
from .measurement import Result, at_least, count_name, pinned

TOPOLOGY = "2P4D"
FIRST_REQUESTS = 2_000
MOST_REQUESTS = 128_000
"""Lengths of the traces that are tried until enough requests are in flight."""


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
    """A 2P4D cluster under marginal cost, at the first decision that brings `in_flight` requests in flight.

    Raises:
        ValueError: that never happens in the longest trace tried.
    """
    requests, most = FIRST_REQUESTS, 0
    while requests <= MOST_REQUESTS:
        simulator = Drive.make(TOPOLOGY, rate, requests, seed).simulator()
        policy = registry.make("marginal-cost")
        while simulator.run():
            simulator.send(*policy.route(simulator.admission()))
            most = max(most, simulator.in_flight)
            if simulator.in_flight >= in_flight:
                return simulator
        requests *= 4
    raise ValueError(
        f"in_flight is {in_flight}; at {rate:g} requests/s {TOPOLOGY} had at most {most} requests in flight"
    )
