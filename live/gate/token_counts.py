"""The token contract: an answer has exactly the tokens that were asked for, and counts the prompt as it was sent."""

from __future__ import annotations

from itertools import cycle

from ..engine import Engine
from ..probe import Probe
from ..reply import Reply
from .report import Check

LEAST_CONTEXT = 256
"""Tokens of context without which gates and calibration have nothing to work with."""

OUTPUTS = (1, 2, 17)

LONG_PROMPT = 2_000
"""Tokens of the longest prompt here; shorter where the context is."""


def check_context(probe: Probe) -> None:
    """Refuses engines whose context is too short.

    Raises:
        ValueError: says which limit there is and how much is needed.
    """
    if probe.context < LEAST_CONTEXT:
        raise ValueError(
            f"the engines of {probe.cluster.name} take {probe.context} tokens (context limit or KV cache); "
            f"at least {LEAST_CONTEXT} are needed"
        )


async def look(probe: Probe, check: Check) -> None:
    """Asks for several lengths, streamed and not, over pairs that take turns.

    Args:
        probe: the engines.
        check: gets what is wrong.
    """
    block = probe.engines[0].block_size
    longest = min(LONG_PROMPT, probe.context) - OUTPUTS[-1]
    lengths = sorted({length for length in (1, 2, block - 1, block, block + 1, 4 * block + 3) if 0 < length < longest})
    wishes = [(p, o, stream) for p in [*lengths, longest] for o in OUTPUTS for stream in (True, False)]
    ways: list[tuple[Engine | None, Engine]] = [*probe.pairs, *((None, engine) for engine in probe.whole_engines)]
    wishes += wishes[: max(0, len(ways) - len(wishes))]
    for (length, output, stream), (prefill, engine) in zip(wishes, cycle(ways), strict=False):
        prompt = probe.prompt(length)
        name = f"{prefill.name} → {engine.name}" if prefill else engine.name
        if prefill is None:
            replies = [(engine.name, await probe.whole(engine, prompt, output, stream=stream), output)]
        else:
            first, second = await probe.two_legs(prefill, engine, prompt, output, stream=stream)
            replies = [(prefill.name, first, 1), (name, second, output)]
        check.requests += 1
        for where, reply, wanted in replies:
            check.problems += _wrong(where, reply, length, wanted, stream)
    check.words = f"{check.requests} requests, prompts of {wishes[0][0]} to {longest} tokens"


def _wrong(where: str, reply: Reply, length: int, output: int, stream: bool) -> list[str]:
    """What is wrong with the counts of an answer."""
    asked = f"{where}: a prompt of {length} tokens, {output} asked for, {'streamed' if stream else 'whole'}:"
    found = []
    if reply.prompt_tokens != length:
        found.append(f"{asked} usage.prompt_tokens is {reply.prompt_tokens}")
    if reply.completion_tokens != output:
        found.append(f"{asked} usage.completion_tokens is {reply.completion_tokens}")
    if reply.tokens is not None and len(reply.tokens) != output:
        found.append(f"{asked} {len(reply.tokens)} tokens came")
    return found
