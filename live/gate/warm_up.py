"""The first requests over every pair: the engines introduce themselves to each other, which takes up to seconds."""

from __future__ import annotations

from ..http_client import Unreachable
from ..probe import Probe
from ..reply import Failed
from .report import Check, WarmUp

PROMPT, OUTPUT = 48, 2
"""Tokens of a warm-up request."""


async def warm_up(probe: Probe, check: Check, warm_ups: list[WarmUp]) -> None:
    """Sends two requests over every pair, or to every mixed engine.

    Args:
        probe: the engines.
        check: gets what is wrong.
        warm_ups: gets the times.
    """
    ways = [*probe.pairs, *((None, engine) for engine in probe.mixed)]
    for prefill, engine in ways:
        seconds: list[float] = []
        name = f"{prefill.name} → {engine.name}" if prefill else engine.name
        try:
            for _ in range(2):
                start = probe.seconds()
                prompt = probe.prompt(PROMPT)
                if prefill is None:
                    reply = await probe.whole(engine, prompt, OUTPUT)
                else:
                    _, reply = await probe.two_legs(prefill, engine, prompt, OUTPUT)
                seconds.append(reply.times[-1] - start)
                check.requests += 1
        except (Failed, Unreachable) as error:
            check.problems.append(f"{name}: {error}")
            continue
        warm_ups.append(WarmUp(prefill.name if prefill else "", engine.name, seconds[0], seconds[1]))
    if warm_ups:
        slowest = max(warm_ups, key=lambda each: each.first_s)
        check.words = f"{len(warm_ups)} of {len(ways)}; the slowest first request, {slowest.first_s:.3f} s, "
        check.words += f"was over {slowest.name}"
