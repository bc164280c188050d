"""Stored saturation rates, so that the usual scenarios need no search."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import catalog, cluster_config
from .cluster import Cluster
from .cluster_config import ClusterConfig
from .digest import digest

FILE = "saturation-rates"
"""In `configs/experiments`; each entry names the command that found it."""


class StoredRate(BaseModel):
    """One result of `disaggroute saturate`.

    Attributes:
        workload: name of the workload.
        cluster: name of the cluster, unless it is given by
        topology: its instances, and
        profile: that of each of them.
        rate: requests per second.
        share: of the ceiling, that round robin reached there.
        command: how to find it again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    cluster: str | None = None
    topology: str | None = None
    profile: str | None = None
    rate: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    command: str

    @model_validator(mode="after")
    def _names_one_cluster(self) -> StoredRate:
        given = [name for name in ("cluster", "topology", "profile") if getattr(self, name) is not None]
        if given not in (["cluster"], ["topology", "profile"]):
            raise ValueError(f"{' and '.join(given) or 'nothing'} given; name a cluster, or a topology and a profile")
        return self

    def config(self) -> ClusterConfig:
        """The cluster.

        Raises:
            ValueError: one of the names is unknown.
        """
        if self.cluster is not None:
            return cluster_config.load(self.cluster)
        assert self.topology is not None and self.profile is not None  # Else the validator had complained.
        return cluster_config.from_topology(self.topology, self.profile)


class StoredRates(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rates: tuple[StoredRate, ...] = ()


@lru_cache(maxsize=4)
def read(name_or_path: str | Path = FILE) -> tuple[StoredRate, ...]:
    """The stored rates.

    Raises:
        ValueError: the file is unreadable or malformed.
    """
    return catalog.validate(StoredRates, catalog.read("experiments", name_or_path), str(name_or_path)).rates


def stored_rate(workload: str, cluster: Cluster) -> float | None:
    """Saturation rate of a workload on a cluster of that content, whatever its name; None if unknown.

    Polls are left out of the comparison: the rates are round robin's, which reads none. So are routers: what several
    of them cost is seen under the traffic that one was given.
    """
    content = _content(cluster)
    for entry in read():
        if entry.workload == workload and _content(entry.config().build()) == content:
            return entry.rate
    return None


def _content(cluster: Cluster) -> str:
    return digest(replace(cluster, name="", poll_interval=1, routers=1, dealing="round-robin"))
