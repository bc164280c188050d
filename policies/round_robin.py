"""Round robin."""

from __future__ import annotations

from .compiled import episode
from .compiled_policy import CompiledPolicy
from .registry import register


@register
class RoundRobin(CompiledPolicy):
    """Each pool in turn, whatever the request and the load.

    Formula, in each pool on its own, with n instances and a pointer k that starts at 0:

        pick the first of k, k + 1, … (mod n) that may be assigned; k ← pick + 1 (mod n)

    Every router has its own pointers. It is the study's reference for saturation (arXiv 2609.16206).
    """

    name = "round-robin"
    number = episode.ROUND_ROBIN
