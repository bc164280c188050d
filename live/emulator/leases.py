"""How long KV is held for a decode engine that does not come, and how one that waits prolongs it."""

from __future__ import annotations

from ...envs.cluster import PS_PER_S, EngineSpec

BEATS_PER_LEASE = 6
"""A decode engine prolongs the leases of its requests this often."""


def beat_interval(spec: EngineSpec) -> int:
    """Engine time between two prolongations, ps."""
    return max(spec.lease // BEATS_PER_LEASE, PS_PER_S // 100)


def extension(spec: EngineSpec) -> int:
    """For how long a prolongation holds, ps."""
    return 2 * spec.lease // 3
