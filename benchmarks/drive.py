"""What the benchmarks drive: a cluster under the study's traffic, at the rate where policies differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..envs import cluster_config, router_constants, workloads
from ..envs.cluster import Cluster
from ..envs.router_constants import RouterConstants
from ..envs.simulator import Simulator
from ..envs.trace import Trace

WORKLOAD = "mixed-bursty-a40"
PROFILE = "a40-qwen2.5-3b"

Say = Callable[[str], None]
"""Told what is being done."""


@dataclass(frozen=True, eq=False)
class Drive:
    """A cluster and the trace that it is to serve.

    Attributes:
        cluster: equal A40 engines.
        constants: what a perfect calibration would tell the router.
        trace: the requests.
        rate: requests per second.
    """

    cluster: Cluster
    constants: RouterConstants
    trace: Trace
    rate: float

    @classmethod
    def make(cls, topology: str, rate: float, requests: int, seed: int) -> Drive:
        """About `requests` requests (arrivals are random) at `rate` per second.

        Raises:
            ValueError: an unreadable topology, a rate or seed out of range, or too few requests to have any.
        """
        cluster = cluster_config.from_topology(topology, PROFILE).build()
        trace = workloads.make(WORKLOAD).generate(rate, requests / rate, seed, PROFILE, cluster)
        if len(trace) == 0:
            raise ValueError(f"requests is {requests}; with seed {seed} none arrives, so more are needed")
        return cls(cluster, router_constants.from_cluster(cluster), trace, rate)

    def simulator(self) -> Simulator:
        """A fresh simulator, as an evaluation that keeps its records makes it."""
        return Simulator(
            self.cluster, self.trace, learns="bucket", constants=self.constants, log_decisions=True
        )


def saturation_rate(topology: str, say: Say) -> float:
    """The rate at which round robin reaches 0.84 of the ceiling: the stored one, else searched for.

    Raises:
        ValueError: an unreadable topology.
    """
    from ..envs.scenario import Scenario
    from ..envs.setting import Setting
    from ..training.saturation import saturate

    scenario = Scenario.make(workload=WORKLOAD, topology=topology, profile=PROFILE)
    stored = Setting.of(scenario).stored_rate
    if stored is not None:
        return stored
    say(f"{topology}: no saturation rate is stored; searching for it (--rate skips this)")
    rate = saturate(scenario, say=say).rate
    say(f"{topology}: {rate:g} requests/s")
    return rate
