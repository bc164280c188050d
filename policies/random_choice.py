"""Random choice."""

from __future__ import annotations

from .compiled import episode
from .compiled_policy import CompiledPolicy
from .registry import register


@register
class RandomChoice(CompiledPolicy):
    """Each instance of a pool equally likely.

    Formula, in each pool on its own, with m instances that may be assigned:

        P(pick = i) = 1 / m

    Numbers come from splitmix64 (Steele, Lea and Flood, OOPSLA 2014), one stream per router, the decode
    instance being drawn before the prefill instance.
    """

    name = "random"
    number = episode.RANDOM
