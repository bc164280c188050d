"""The simulated twin of a live cluster: what the router believes its engines to be."""

from __future__ import annotations

from collections.abc import Sequence

from ..envs.cluster import Cluster
from .cluster_file import ROLES, LiveCluster
from .engine import Engine


def twin(cluster: LiveCluster, engines: Sequence[Engine]) -> Cluster:
    """The cluster that a simulator would run: each engine's profile, with the sizes that it reports.

    Args:
        cluster: the engines' model, profiles and limits.
        engines: those that there are, met or not.

    Raises:
        ValueError: an unknown profile, or values that do not fit it.
    """
    prefill, decode, mixed = (
        tuple(engine.spec(cluster) for engine in engines if engine.role == role) for role in ROLES
    )
    return Cluster(prefill, decode, mixed, first_token=cluster.first_token, name=cluster.name)
