"""The simulated twin of a live cluster: what the router believes it to be, as a scenario takes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..envs.cluster_config import ClusterConfig, Pool
from ..envs.profiles import SloTargets
from ..envs.trace import Trace
from .cluster_file import ROLES, EngineEntry, LiveCluster


def twin(cluster: LiveCluster) -> ClusterConfig:
    """Instances of the engines' profiles, in the order of the engines.

    KV sizes and context limits are those of the profiles and the cluster's file; engines tell their own when a router
    meets them.
    """
    return ClusterConfig.model_validate(
        {role: [_pool(cluster, entry) for entry in getattr(cluster, role)] for role in ROLES}
        | {"name": cluster.name, "first_token": cluster.first_token}
    )


def _pool(cluster: LiveCluster, entry: EngineEntry) -> Pool:
    limit = {} if cluster.max_model_len is None else {"max_model_len": cluster.max_model_len}
    overrides = entry.overrides.model_copy(update=limit)
    return Pool(count=1, profile=entry.profile or cluster.profile, overrides=overrides)


def with_targets(trace: Trace, believed: SloTargets, cluster: LiveCluster) -> Trace:
    """A trace with the targets of the cluster's file.

    Args:
        trace: of which targets by class are those of `believed`; relative ones are left as they are.
        believed: targets by class of the profile that the trace was made with.
        cluster: whose `slo` counts, if it has one.
    """
    if cluster.slo is None:
        return trace
    own = cluster.targets
    return replace(
        trace,
        ttft_target=_replaced(trace.ttft_target, trace.slo, believed.ttft, own.ttft),
        tpot_target=_replaced(trace.tpot_target, trace.slo, believed.tpot, own.tpot),
    )


def _replaced(
    targets: npt.NDArray[np.int64], slo: npt.NDArray[np.int8], old: tuple[int, int], new: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Targets (N,) in which those of the old classes are those of the new ones."""
    was, now = np.array(old, np.int64), np.array(new, np.int64)
    return np.where(targets == was[slo], now[slo], targets)
