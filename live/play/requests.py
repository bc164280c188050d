"""The requests of an episode, as a client would have sent them."""

from __future__ import annotations

import orjson

from ...envs.cluster import PS_PER_S
from ..drive.plan import Plan
from ..request import Request
from ..two_legs import COMPLETIONS


def request_of(plan: Plan, k: int, arrival: int, hint: int | None) -> Request:
    """The k-th request of a plan.

    Args:
        plan: bodies and names.
        k: index in the trace.
        arrival: ps of the router's clock.
        hint: ô of a static predictor, tokens; None: the router learns it.
    """
    trace = plan.trace
    return Request(
        id=plan.id(k),
        path=COMPLETIONS,
        body=orjson.loads(plan.body(k)),
        stream=True,
        show_usage=False,
        slo=trace.slo.item(k),
        output_hint=hint,
        prompt=trace.prompt.item(k),
        limit=trace.output.item(k),
        arrival=arrival,
        ttft_target_s=trace.ttft_target.item(k) / PS_PER_S,
        tpot_target_s=trace.tpot_target.item(k) / PS_PER_S,
    )
