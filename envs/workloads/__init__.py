"""Workloads by name: families of requests, their lengths, SLO classes and arrivals.

`workloads.make("chat").generate(rate=4, duration_s=300, seed=0)` gives a `Trace`. A new workload is one
YAML file in `configs/workloads/`, or any file: by path, registered under a name, or brought by another package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import catalog
from .config import WorkloadConfig, load
from .workload import Workload

__all__ = ["Workload", "WorkloadConfig", "make", "names", "register"]


def names() -> tuple[str, ...]:
    """Names of the workloads that ship or are registered."""
    return catalog.names("workloads")


def register(name: str, path: str | Path) -> None:
    """Adds a workload's YAML file under a name, for this process.

    Raises:
        ValueError: the name is taken.
    """
    catalog.register("workloads", name, path)


def make(name: str | Path | WorkloadConfig, **overrides: Any) -> Workload:
    """The workload of this name, path or configuration, with some fields changed.

    Args:
        name: as `names()`, or the path of a YAML file, or a whole configuration.
        **overrides: fields of WorkloadConfig, as in `make("reasoning", arrivals={"cv": 5.6})`.

    Raises:
        ValueError: unknown name or field, or a value out of range.
    """
    if isinstance(name, WorkloadConfig):
        data = catalog.merge(name.model_dump(), overrides)
        return Workload.from_config(catalog.validate(WorkloadConfig, data, name.name))
    return Workload.from_config(load(str(name), **overrides))
