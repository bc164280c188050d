"""A scenario: which traffic drives which cluster, at what rate and for how long."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from . import catalog
from .cluster import MAX_ROUTERS, MAX_TIME_PS, PS_PER_S, Dealing
from .cluster_config import ClusterConfig

DEFAULT_WORKLOAD = "mixed-bursty-a40"
DEFAULT_TOPOLOGY = "2P4D"
DEFAULT_PREDICTOR = "bucket"

MAX_S = MAX_TIME_PS / PS_PER_S
"""Longest window and warm-up: the longest trace, seconds."""


class Scenario(BaseModel):
    """What a person writes; `Setting.of` finds what the names stand for.

    Attributes:
        workload: name of a workload family, its YAML file, or a trace file.
        format: format of the trace file; detected when None.
        topology: instances by role, such as 2P4D or 4M; the workload's cluster, else 2P4D, unless `cluster` is given.
        cluster: name or YAML file of a cluster, or what such a file holds, instead of `topology`.
        profile: profile of every instance of `topology`, and source of the SLO targets.
        routers: number of router replicas, each with its own ledger; None: as the cluster says, which is 1 by default.
        dealing: which of them gets a request: round-robin or random; None: as the cluster says.
        rate: requests per second; None: not decided (a trace file then keeps its own).
        duration_s: length of the measurement window; None: 300 s, or all of a trace file.
        warmup_s: time before it, routed by the policy under test and not measured.
        predictor: predictor of output lengths, such as `bucket` or `noisy(0.5)`.
        targets: SLO targets: fixed (from the profile), or relative to what each request needs alone; None: as
            the workload says, fixed for a trace file.
        constants_scale: factor on every time that the router believes in; the cluster stays.
        observability: router (the ledger, predictions and polls that a real router has), or full, for research: true
            output lengths instead of predictions, and polls without delay.
        tight_share: share of tight requests of a trace file; None: the file's classes, else 0.5.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str = DEFAULT_WORKLOAD
    format: str | None = None
    topology: str | None = None
    cluster: str | ClusterConfig | None = None
    profile: str | None = None
    routers: int | None = Field(None, ge=1, le=MAX_ROUTERS)
    dealing: Dealing | None = None
    rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    duration_s: float | None = Field(None, gt=0, le=MAX_S, allow_inf_nan=False)
    warmup_s: float = Field(60.0, ge=0, le=MAX_S, allow_inf_nan=False)
    predictor: str = DEFAULT_PREDICTOR
    targets: Literal["fixed", "relative"] | None = None
    constants_scale: float = Field(1.0, gt=0, le=1e9, allow_inf_nan=False)
    tight_share: float | None = Field(None, ge=0, le=1)
    observability: Literal["router", "full"] = "router"

    @model_validator(mode="after")
    def _one_cluster(self) -> Scenario:
        if self.cluster is not None and self.topology is not None:
            raise ValueError("topology and cluster both describe the cluster; give one")
        return self

    @model_validator(mode="after")
    def _no_idle_predictor(self) -> Scenario:
        if self.observability == "full" and self.predictor not in (DEFAULT_PREDICTOR, "oracle"):
            raise ValueError(
                f"predictor is {self.predictor!r}, but with observability full the router sees true lengths; "
                "leave one of them out"
            )
        return self

    @classmethod
    def make(cls, **values: Any) -> Scenario:
        """A scenario, with a sentence instead of a pydantic report for bad values.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        return catalog.validate(cls, values, "scenario")

    def at_rate(self, rate: float) -> Scenario:
        """The same at another rate (requests per second).

        Raises:
            ValueError: the rate is not a finite number above 0.
        """
        return self.make(**(self.model_dump() | {"rate": rate}))
