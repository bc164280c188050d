"""How many requests per second the simulator simulates, policy by policy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs.simulator import run_policy
from ..envs.trace import Trace
from ..policies import registry
from ..policies.policy import Policy
from ..training.metrics import met_targets
from .drive import Drive, Say
from .measurement import Result, at_least, pinned

TOPOLOGIES = ("2P4D", "16P48D")
POLICIES = ("round-robin", "least-loaded", "marginal-cost")


@dataclass(frozen=True, eq=False)
class Episode:
    """One timed run.

    Attributes:
        seconds: of the run: simulation, ledger, polls, decisions, records.
        busy: seconds for which it had the core.
        touch: seconds it took to touch the memory of records and decisions for the first time.
        records: (N,) dtype RECORD.
    """

    seconds: float
    busy: float
    touch: float
    records: npt.NDArray[Any]

    @classmethod
    def run(cls, drive: Drive, policy: Policy, seed: int) -> Episode:
        """Runs a policy on a fresh simulator.

        Raises:
            RuntimeError: a request has not ended.
        """
        simulator = drive.simulator()
        decisions = simulator.decisions
        log = decisions if decisions.base is None else decisions.base
        started = perf_counter_ns()
        # The system hands out memory page by page at the first touch; that is not the simulator's work.
        simulator.records.view(np.uint8).fill(0)
        log.view(np.uint8).fill(0)
        touched, before = perf_counter_ns(), thread_time_ns()
        run_policy(simulator, policy, seed)
        ended, after = perf_counter_ns(), thread_time_ns()
        if simulator.ended != len(drive.trace):
            raise RuntimeError(f"{policy}: {simulator.ended} of {len(drive.trace)} requests have ended")
        seconds, busy = (ended - touched) / 1e9, (after - before) / 1e9
        return cls(seconds, busy, (touched - started) / 1e9, simulator.records)


def measure(
    topology: str,
    rate: float,
    *,
    policies: Sequence[str] = POLICIES,
    requests: int = 1_000_000,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """Speed of whole episodes on one core; making the trace and compiling are not timed.

    Args:
        topology: such as 2P4D.
        rate: requests per second of simulated time.
        policies: as `registry.parse` reads them.
        requests: about how many requests a run has.
        repeats: runs per policy, each on a fresh simulator.
        seed: of the trace and of the policies.
        say: told what is being done.

    Returns:
        `simulator/TOPOLOGY/POLICY`, requests/s, with goodput, mean requests in flight and the share of the
        core's time that the runs got; and `simulator/TOPOLOGY/first-touch`, ns/request.

    Raises:
        ValueError: an unknown policy or topology, or a count below 1.
        RuntimeError: a run lost a request.
    """
    at_least("requests", requests)
    at_least("repeats", repeats)
    chosen = {text: registry.parse(text) for text in policies}
    say(f"simulator/{topology}: making a trace of about {requests:,} requests at {rate:g} requests/s")
    drive = Drive.make(topology, rate, requests, seed)
    short = Drive.make(topology, rate, min(requests, 1_000), seed)
    count = len(drive.trace)
    results, touches = [], []
    with pinned():
        for text, policy in chosen.items():
            say(f"simulator/{topology}/{text}")
            Episode.run(short, policy, seed)  # Compiles, or loads from the cache.
            speeds, shares = [], []
            for _ in range(repeats):
                episode = Episode.run(drive, policy, seed)
                speeds.append(count / episode.seconds)
                shares.append(episode.busy / episode.seconds)
                touches.append(1e9 * episode.touch / count)
            results.append(
                Result.of(
                    f"simulator/{topology}/{text}",
                    "requests/s",
                    speeds,
                    goodput=float(met_targets(episode.records, drive.trace).mean()),
                    in_flight=mean_in_flight(episode.records, drive.trace),
                    rate=rate,
                    requests=count,
                    core_share=statistics.median(shares),
                )
            )
    return [*results, Result.of(f"simulator/{topology}/first-touch", "ns/request", touches)]


def mean_in_flight(records: npt.NDArray[Any], trace: Trace) -> float:
    """Requests in flight, averaged from the first arrival to the last end: Σ (end − arrival) / span."""
    # In float64: a sum of picoseconds over a million requests leaves int64 within sight.
    stay = (records["end"] - trace.arrival).astype(np.float64).sum()
    span = float(records["end"].max() - trace.arrival[0])
    return float(stay) / span if span > 0 else float("nan")
