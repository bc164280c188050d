"""Cluster configurations: what a person writes about a cluster, and the `Cluster` it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from . import catalog, profiles, router_constants
from .cluster import MAX_ROUTERS, MAX_TIME_PS, PS_PER_S, Action, Cluster, ClusterEvent, Dealing, EngineSpec
from .profile_constants import MAX_MS, PS_PER_MS, EngineOverrides
from .profiles import Profile
from .router_constants import RouterConstants

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

ROLES = ("prefill", "decode", "mixed")

MAX_COUNT = 4096
"""Instances that the simulator numbers."""


class Pool(BaseModel):
    """Equal instances of one role.

    Attributes:
        count: how many.
        profile: name of a profile, or path of its YAML file.
        overrides: what differs from the profile.
    """

    model_config = STRICT

    count: int = Field(ge=1, le=MAX_COUNT)
    profile: str
    overrides: EngineOverrides = EngineOverrides()


class Event(BaseModel):
    """One entry of the failure schedule.

    Attributes:
        at_s: simulated seconds.
        instance: role and index within the role, as in `decode/3`.
        action: kill, drain or return.
    """

    model_config = STRICT

    at_s: float = Field(ge=0, le=MAX_TIME_PS / PS_PER_S)
    instance: str
    action: Action


class Calibration(BaseModel):
    """How the router's constants differ from the cluster's; changes nothing in the cluster.

    Attributes:
        scale: multiplies every time constant (1/7.4: the study's uncalibrated router).
        overrides: fields of RouterConstants in s, each a number or one per instance; applied last.
    """

    model_config = STRICT

    scale: float = Field(1.0, gt=0, le=1e9)
    overrides: dict[str, float | list[float]] = {}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (dict, Pool)) else value


Pools = Annotated[list[Pool], BeforeValidator(_as_list)]


class ClusterConfig(BaseModel):
    """A cluster as a person writes it. Give `prefill` and `decode`, or `mixed` alone.

    Attributes:
        name: for messages and reports.
        prefill: one pool, or a list of unlike ones; instances are numbered in this order.
        decode: likewise.
        mixed: likewise.
        first_token: which leg's first token the client sees.
        poll_interval_s: seconds between polls.
        on_kill: what becomes of requests that a kill loses.
        events: failure schedule; sorted by time when built.
        routers: number of router replicas, each with its own ledger, learner and policy state.
        dealing: which router gets a request: the next in turn, or one at random.
        pair_latency_ms: transfer latency of each (prefill, decode) pair, instead of the profiles'.
        calibration: how wrong the router's constants are.
    """

    model_config = STRICT

    name: Annotated[str, AfterValidator(catalog.check_name)] = "custom"
    prefill: Pools = []
    decode: Pools = []
    mixed: Pools = []
    first_token: Literal["decode", "prefill"] = "decode"
    poll_interval_s: float = Field(0.05, gt=0, le=86_400)
    on_kill: Literal["fail", "reroute"] = "fail"
    events: list[Event] = []
    routers: int = Field(1, ge=1, le=MAX_ROUTERS)
    dealing: Dealing = "round-robin"
    pair_latency_ms: list[list[Annotated[float, Field(ge=0, le=MAX_MS)]]] | None = None
    calibration: Calibration = Calibration()

    @model_validator(mode="after")
    def _events_name_instances(self) -> ClusterConfig:
        for event in self.events:
            self.instance_index(event.instance)
        return self

    def instance_names(self) -> tuple[str, ...]:
        """Names of the instances, `role/index`, in the cluster's order."""
        return tuple(
            f"{role}/{i}" for role in ROLES for i in range(sum(pool.count for pool in getattr(self, role)))
        )

    def instance_index(self, name: str) -> int:
        """Global index of an instance.

        Raises:
            ValueError: no such instance.
        """
        known = self.instance_names()
        if name not in known:
            counts = ", ".join(
                f"{role}/0 to {role}/{n - 1}"
                for role in ROLES
                if (n := sum(pool.count for pool in getattr(self, role)))
            )
            raise ValueError(f"instance {name!r} does not exist; allowed: {counts or 'none'}")
        return known.index(name)

    def pools(self) -> Iterator[tuple[str, Pool]]:
        """Every pool with its role, in the cluster's order."""
        for role in ROLES:
            for pool in getattr(self, role):
                yield role, pool

    @property
    def profile(self) -> Profile:
        """The profile that sets the SLO targets: that of the first decode (or mixed) pool."""
        first = (self.decode or self.mixed or self.prefill)[0]
        return profiles.load(first.profile)

    def build(self) -> Cluster:
        """The integer form, times rounded to the nearest picosecond.

        Raises:
            ValueError: an unknown profile, or a cluster that cannot run; the message names the cluster.
        """
        engines: dict[str, list[EngineSpec]] = {role: [] for role in ROLES}
        for role, pool in self.pools():
            try:
                spec = profiles.load(pool.profile).engine(**pool.overrides.model_dump(exclude_none=True))
            except ValueError as error:
                raise ValueError(f"{self.name}: {role}: {error}") from error
            engines[role] += [spec] * pool.count
        events = [
            ClusterEvent(round(e.at_s * PS_PER_S), self.instance_index(e.instance), e.action)
            for e in self.events
        ]
        return Cluster(
            **{role: tuple(specs) for role, specs in engines.items()},
            first_token=self.first_token,
            poll_interval=round(self.poll_interval_s * PS_PER_S),
            on_kill=self.on_kill,
            events=tuple(sorted(events, key=lambda event: event.time)),
            routers=self.routers,
            dealing=self.dealing,
            latency=self._latency(),
            name=self.name,
        )

    def router_constants(self) -> RouterConstants:
        """What the router believes: the cluster's constants, scaled and overridden by `calibration`.

        Raises:
            ValueError: an override that is unknown or has the wrong shape.
        """
        true = router_constants.from_cluster(self.build())
        try:
            return true.scaled(self.calibration.scale).overridden(**self.calibration.overrides)
        except ValueError as error:
            raise ValueError(f"{self.name}: calibration: {error}") from error

    def _latency(self) -> npt.NDArray[np.int64] | None:
        if self.pair_latency_ms is None:
            return None
        rows = self.pair_latency_ms
        shape = tuple(sum(pool.count for pool in getattr(self, role)) for role in ("prefill", "decode"))
        if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
            raise ValueError(
                f"{self.name}: pair_latency_ms has rows of {[len(row) for row in rows]} entries; "
                f"it must have {shape[0]} rows (prefill) of {shape[1]} (decode)"
            )
        latency: npt.NDArray[np.int64] = np.rint(np.array(rows) * PS_PER_MS).astype(np.int64)
        return latency


def names() -> tuple[str, ...]:
    """Names of the clusters that ship or are registered."""
    return catalog.names("clusters")


def load(name_or_path: str | Path, **overrides: Any) -> ClusterConfig:
    """The cluster of this name or in this YAML file, with some fields changed.

    Raises:
        ValueError: unknown name (with the nearest ones), unreadable file, or a field out of range.
    """
    data = catalog.merge(catalog.read("clusters", name_or_path), overrides)
    return catalog.validate(ClusterConfig, data, str(name_or_path))


def from_topology(topology: str, profile: str | Path, **overrides: Any) -> ClusterConfig:
    """A cluster of equal engines from `2P4D` (disaggregated) or `4M` (aggregated).

    Args:
        topology: counts and roles.
        profile: name or path of the profile.
        **overrides: further fields of ClusterConfig.

    Raises:
        ValueError: the topology does not read like that, or a field is out of range.
    """
    match = re.fullmatch(r"(?:([1-9]\d*)P([1-9]\d*)D|([1-9]\d*)M)", topology, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"topology is {topology!r}; it must read like 2P4D (prefill and decode instances) or 4M (mixed)"
        )
    counts = zip(ROLES, match.groups(), strict=True)
    data: dict[str, Any] = {
        role: {"count": int(count), "profile": str(profile)} for role, count in counts if count
    }
    data["name"] = f"{topology.lower()}-{Path(str(profile)).stem if '/' in str(profile) else profile}"
    return catalog.validate(ClusterConfig, catalog.merge(data, overrides), topology)
