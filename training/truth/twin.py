"""The simulated twin of the cluster that a live results folder tells of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...envs import profiles
from ...envs.cluster import Cluster, EngineSpec
from ...envs.cluster_config import ROLES
from ..description import Description

Engine = tuple[str | None, Mapping[str, Any]]
"""Its own profile, or None for the cluster's, and what it changes in it."""


def twin(description: Description, configuration: Mapping[str, Any], profile: str | None = None) -> Cluster:
    """The cluster, as the simulator has it.

    Args:
        description: of the live evaluation: its pools and their profiles.
        configuration: of the same; its `live_cluster` says what single engines change in their profile.
        profile: name or file of the profile of every engine; None: those that the router believed in.

    Raises:
        ValueError: an unknown or unreadable profile, one that does not suit what an engine changes, or a pool whose
            profiles are not known one by one.
    """
    pools: dict[str, tuple[EngineSpec, ...]] = {}
    for role, count in description.pools.items():
        told = _engines(configuration, role)
        engines = told if len(told) == count else [(None, {})] * count
        pools[role] = tuple(_spec(description, role, profile or own, changes) for own, changes in engines)
    prefill, decode, mixed = (pools.get(role, ()) for role in ROLES)
    return Cluster(prefill, decode, mixed, name=description.cluster)


def _engines(configuration: Mapping[str, Any], role: str) -> list[Engine]:
    try:
        listed = configuration.get("live_cluster", {}).get("engines", [])
        return [(own, dict(changes)) for of, _, own, changes in listed if of == role]
    except (AttributeError, TypeError, ValueError):
        raise ValueError("the folder's live_cluster, which lists its engines, is damaged; evaluate again") from None


def _spec(description: Description, role: str, profile: str | None, changes: Mapping[str, Any]) -> EngineSpec:
    if profile is not None:
        return profiles.load(profile).engine(**changes)
    names = description.profiles.get(role, ())
    if not names:
        raise ValueError(f"the folder does not say which profile its {role} pool has; give --profile")
    if len(names) != 1:
        raise ValueError(
            f"the {role} pool has engines of {', '.join(names)}, and the folder does not say which is which; "
            "give --profile"
        )
    try:
        return profiles.load(names[0]).engine(**changes)
    except ValueError as error:
        raise ValueError(f"{error}; the folder's {role} pool names it: give --profile FILE") from None
