"""What both simulators are given: one trace, and engines with the same limits and step times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...envs import cluster_config, workloads
from ...envs.cluster import PS_PER_S, Cluster
from ...envs.trace import Trace
from ...envs.workloads import WorkloadConfig
from ...policies.run import simulate
from ..measurement import at_least

TOPOLOGY = "2P4D"
PROFILE = Path(__file__).with_name("profile.yaml")
POLICY = "round-robin"

SIGMA = 0.8
"""Of both length laws: standard deviation of the logarithm."""

MEANS = {"prompt": 512, "output": 256}
"""Of the lognormals, tokens; rounding and the bound of 8,192 tokens take a token of the prompts' mean."""

AT_LEAST = 100
"""Requests, below which a rate of completions means nothing."""


@dataclass(frozen=True, eq=False)
class Match:
    """One comparison.

    Attributes:
        cluster: ours.
        trace: requests; the first arrives at 0, as Dynamo counts time from the first arrival.
        capacity: requests per second that the cluster completes when all requests wait from the start.
        rate: requests per second of the trace.
        load: rate over capacity.
        seed: of the trace.
    """

    cluster: Cluster
    trace: Trace
    capacity: float
    rate: float
    load: float
    seed: int

    @classmethod
    def make(cls, requests: int, load: float, seed: int) -> Match:
        """A Poisson trace of exactly so many requests at a share of the cluster's capacity.

        Raises:
            ValueError: too few requests, or a load or seed out of range.
        """
        at_least("requests", requests, AT_LEAST)
        if not 0 < load <= 1:
            raise ValueError(f"load is {load:g}; it must be above 0 and at most 1")
        cluster = cluster_config.from_topology(TOPOLOGY, str(PROFILE)).build()
        limit = capacity(_trace(requests, 1.0, seed, cluster), cluster)
        rate = load * limit
        return cls(cluster, _trace(requests, rate, seed, cluster), limit, rate, load, seed)


def capacity(trace: Trace, cluster: Cluster) -> float:
    """Requests per second that a cluster completes under round robin when the whole trace waits from the start.

    Counted between the first and the third quarter of the completions, so without filling and running empty.
    """
    waiting = replace(trace, arrival=np.zeros_like(trace.arrival))
    ended = np.sort(simulate(waiting, cluster, POLICY).records["end"])
    first, last = len(ended) // 4, 3 * len(ended) // 4
    return float((last - first) * PS_PER_S / (ended[last] - ended[first]))


def without_recompute(cluster: Cluster) -> Cluster:
    """The cluster with decode instances that compute a preempted request anew in no time, as Dynamo's do.

    A prefill-only step lasts 1 ps there, since no step may last nothing.
    """
    decode = tuple(
        replace(engine, base_mixed=engine.base_decode, base_prefill=1, per_token=0, per_token_sq=0)
        for engine in cluster.decode
    )
    return replace(cluster, decode=decode)


def workload() -> WorkloadConfig:
    """Lognormal lengths, Poisson arrivals, one class."""
    # The mean of a lognormal is its median · exp(σ² / 2).
    laws = {
        name: {"parts": [{"median": mean * math.exp(-(SIGMA**2) / 2), "sigma": SIGMA}]} for name, mean in MEANS.items()
    }
    return WorkloadConfig.model_validate({"name": "peers", "tight_share": 1.0, "profile": str(PROFILE), **laws})


def _trace(requests: int, rate: float, seed: int, cluster: Cluster) -> Trace:
    source, duration_s = workloads.make(workload()), 1.2 * requests / rate
    while len(trace := source.generate(rate, duration_s, seed, cluster=cluster)) < requests:
        duration_s *= 1.5
    cut = {
        name: getattr(trace, name)[:requests]
        for name in ("prompt", "output", "slo", "family", "ttft_target", "tpot_target")
    }
    return replace(trace, arrival=trace.arrival[:requests] - trace.arrival[0], **cut)
