"""Least loaded: join the shortest queue."""

from __future__ import annotations

from .compiled import episode
from .compiled_policy import CompiledPolicy
from .registry import register


@register
class LeastLoaded(CompiledPolicy):
    """Join the shortest queue: the fewest requests, counted in the router's own ledger.

    Formula; ties go to the lowest index:

        prefill = arg min over p of queued(p)       requests admitted to p whose prefill has not ended
        decode  = arg min over d of in_flight(d)    requests admitted to d that have not ended

    A mixed instance is judged by in_flight. Source: Winston, "Optimality of the shortest line discipline",
    Journal of Applied Probability 14(1), 1977; `least loaded` of the study (arXiv 2609.16206).
    """

    name = "least-loaded"
    number = episode.LEAST_LOADED
