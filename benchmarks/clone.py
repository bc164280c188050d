"""How long it takes to copy the state of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from ..envs.simulator import Simulator, entries
from ..policies.marginal_cost import MarginalCost
from .drive import Drive, Say
from .measurement import Result, at_least, count_name, pinned

TOPOLOGY = "2P4D"

SEARCHED = 200_000
"""Requests of the trace in which the moment with the most requests in flight is sought."""

LEADS = (2_000, 20_000, SEARCHED)
"""Requests before that moment that are tried as a way to it: the fewer, the fewer records has the state."""


def measure(
    rate: float,
    *,
    in_flight: int = 300,
    times: int = 20_000,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Time to copy the state of a 2P4D cluster, inside compiled code and from Python.

    Args:
        rate: requests per second.
        in_flight: requests in flight in the state that is copied.
        times: copies per repeat, inside compiled code; from Python a hundredth of them.
        repeats: how often that is measured.
        seed: of the trace.
        say: told what is being done.

    Returns:
        `clone/300`, a copy into an existing block inside compiled code; `clone/300/snapshot` and
        `clone/300/restore`, the methods of `Simulator`; `clone/300/python`, `Simulator.clone`, which also
        copies the records and decisions of the whole trace; µs.

    Raises:
        ValueError: so many requests are never in flight, or a count is below 1.
    """
    for key, value in (("in_flight", in_flight), ("times", times), ("repeats", repeats)):
        at_least(key, value)
    name = f"clone/{count_name(in_flight)}"
    say(f"{name}: looking for a state with {in_flight} requests in flight")
    simulator = loaded_simulator(rate, in_flight, seed)
    twin, kept = simulator.clone(), simulator.snapshot()
    few = max(1, times // 100)
    ways: dict[str, tuple[Callable[[], object], int, int]] = {
        name: (lambda: entries.clone_into(simulator.address, twin.address, times), 1, times),
        f"{name}/snapshot": (simulator.snapshot, few, few),
        f"{name}/restore": (lambda: simulator.restore(kept), few, few),
        f"{name}/python": (simulator.clone, few, few),
    }
    results = []
    about = {"in_flight": simulator.in_flight, "trace": len(simulator.trace), "rate": rate}
    with pinned():
        entries.clone_into(simulator.address, twin.address, 1)  # Compiles, or loads from the cache.
        for key, (function, calls, copies) in ways.items():
            say(key)
            spent = [microseconds(function, calls) / copies for _ in range(repeats)]
            results.append(Result.of(key, "µs", spent, **about))
    return results


def microseconds(function: Callable[[], object], calls: int) -> float:
    """How long some calls take together."""
    started = perf_counter_ns()
    for _ in range(calls):
        function()
    return (perf_counter_ns() - started) / 1e3


def loaded_simulator(rate: float, in_flight: int, seed: int) -> Simulator:
    """A 2P4D cluster under marginal cost, at an arrival that brings `in_flight` requests in flight.

    Raises:
        ValueError: that never happens in the trace that is searched.
    """
    whole = Drive.make(TOPOLOGY, rate, SEARCHED, seed)
    present = in_flight_at_arrivals(whole, seed)
    peak = int(present.argmax())
    for lead in LEADS if present[peak] >= in_flight else ():
        part = whole.trace.select(slice(max(0, peak - lead), peak + 1))
        drive = replace(whole, trace=replace(part, arrival=part.arrival - part.arrival[0]))
        enough = in_flight_at_arrivals(drive, seed) >= in_flight
        if enough.any():
            simulator = drive.simulator()
            MarginalCost().run_compiled(simulator, seed, until=int(drive.trace.arrival[enough.argmax()]))
            return simulator
    raise ValueError(
        f"in_flight is {in_flight}; at {rate:g} requests/s {TOPOLOGY} had at most {present[peak]} in flight"
    )


def in_flight_at_arrivals(drive: Drive, seed: int) -> npt.NDArray[np.int64]:
    """(N,) requests in flight right after each arrival, under marginal cost."""
    simulator = drive.simulator()
    MarginalCost().run_compiled(simulator, seed)
    ended = np.searchsorted(np.sort(simulator.records["end"]), drive.trace.arrival, side="right")
    return np.arange(1, len(drive.trace) + 1) - ended
