"""The simulated twin of the cluster that a results folder tells of."""

from __future__ import annotations

from ...envs import profiles
from ...envs.cluster import Cluster, EngineSpec
from ...envs.cluster_config import ROLES
from ...envs.profiles import Profile
from ..description import Description


def twin(description: Description, profile: str | None = None) -> Cluster:
    """The cluster, as the simulator has it.

    Args:
        description: of the live evaluation: its pools and their profiles.
        profile: name or file of the profile of every engine; None: those that the router believed in.

    Raises:
        ValueError: an unknown or unreadable profile, or a pool whose profiles are not known one by one.
    """
    pools: dict[str, tuple[EngineSpec, ...]] = {}
    for role, count in description.pools.items():
        pools[role] = (_profile(description, role, profile).engine(),) * count
    prefill, decode, mixed = (pools.get(role, ()) for role in ROLES)
    return Cluster(prefill, decode, mixed, name=description.cluster)


def _profile(description: Description, role: str, profile: str | None) -> Profile:
    if profile is not None:
        return profiles.load(profile)
    names = description.profiles[role]
    if len(names) != 1:
        raise ValueError(
            f"the {role} pool has engines of {', '.join(names) or 'no profile'}, and the folder does not say which is "
            "which; give --profile"
        )
    try:
        return profiles.load(names[0])
    except ValueError as error:
        raise ValueError(f"{error}; the folder's {role} pool names it: give --profile FILE") from None
