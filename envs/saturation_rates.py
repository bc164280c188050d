"""Stored saturation rates, so that the usual scenarios need no search."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from . import catalog, cluster_config
from .cluster import Cluster
from .digest import digest

FILE = "saturation-rates"
"""In `configs/experiments`; each entry names the command that found it."""


class StoredRate(BaseModel):
    """One result of `disaggroute saturate`.

    Attributes:
        workload: name of the workload.
        topology: of the cluster.
        profile: of every instance.
        rate: requests per second.
        share: of the ceiling, that round robin reached there.
        command: how to find it again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    topology: str
    profile: str
    rate: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    command: str


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

    Polls are left out of the comparison: the rates are round robin's, which reads none.
    """
    content = _content(cluster)
    for entry in read():
        if entry.workload == workload:
            known = cluster_config.from_topology(entry.topology, entry.profile).build()
            if _content(known) == content:
                return entry.rate
    return None


def _content(cluster: Cluster) -> str:
    return digest(replace(cluster, name="", poll_interval=1))
