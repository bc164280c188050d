"""Admissions on small clusters, caught in the middle of a run."""

from __future__ import annotations

import numpy as np

from disaggroute.envs import cluster_config, router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster, ClusterEvent
from disaggroute.envs.simulator import Simulator
from disaggroute.envs.trace import Trace
from disaggroute.policies import Policy

PROFILE = "a40-qwen2.5-3b"
SECOND = 10**12


def cluster(topology: str = "2P4D", **changes: object) -> Cluster:
    """A cluster of the A40 profile."""
    from dataclasses import replace

    return replace(cluster_config.from_topology(topology, PROFILE).build(), **changes)


def drained(topology: str, *instances: int) -> Cluster:
    """The same with some instances draining from the start."""
    return cluster(topology, events=tuple(ClusterEvent(0, i, "drain") for i in instances))


def trace(requests: int = 60, seed: int = 0, rate: float = 30.0) -> Trace:
    """Lognormal lengths, Poisson arrivals, both classes."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(SECOND / rate, requests)).astype(np.int64) + 1
    return Trace(
        arrival=arrival,
        prompt=np.clip(rng.lognormal(5.5, 1.2, requests), 1, 4000).astype(np.int32),
        output=np.clip(rng.lognormal(4.5, 1.0, requests), 1, 2000).astype(np.int32),
        slo=(rng.random(requests) < 0.5).astype(np.int8),
        family=np.zeros(requests, np.int8),
        ttft_target=np.full(requests, 175 * 10**9, np.int64),
        tpot_target=np.full(requests, 39_700_000_000, np.int64),
    )


def simulator(on: Cluster, of: Trace, *, constants: bool = True) -> Simulator:
    """A fresh simulator with an oracle."""
    beliefs = router_constants.from_cluster(on) if constants else None
    return Simulator(on, of, predicted=of.output, constants=beliefs)


def admission_after(simulated: Simulator, policy: Policy, count: int) -> Admission:
    """The admission that is due after `count` decisions of a policy; it lives as long as the simulator."""
    for _ in range(count):
        assert simulated.run()
        simulated.send(*policy.route(simulated.admission()))
    assert simulated.run()
    return simulated.admission()
