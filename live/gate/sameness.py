"""The same greedy output, whoever computes the prompt and whoever goes on: KV that arrives wrong shows itself.

It does so only where the output depends on the whole prompt, which is looked at first. A model with random weights
may repeat the last token whatever came before; it would pass with any KV.
"""

from __future__ import annotations

from ..engine import Engine
from ..probe import Probe, Prompt
from ..reply import Reply
from .report import Check

BEGINNINGS, DIFFERENT = 8, 6
"""Prompts that begin differently and end the same, and how many different outputs they must give."""

SHARED_END = 32
"""Tokens."""

OUTPUT = 24
"""Tokens that are compared."""


async def look_at_the_model(probe: Probe, check: Check) -> None:
    """Refuses a model whose output does not tell its prompts apart.

    Args:
        probe: the engines.
        check: gets the verdict.
    """
    engine = probe.whole_engines[0]
    # The beginnings differ in their first tokens alone: then come as many as fill blocks of their own.
    middle = probe.prompt(min(2 * engine.block_size, probe.context - SHARED_END - OUTPUT - 8))
    end = probe.prompt(SHARED_END)
    said = []
    for _ in range(BEGINNINGS):
        said.append((await probe.whole(engine, probe.prompt(8) + middle + end, OUTPUT)).said)
        check.requests += 1
    different = len(set(said))
    check.words = f"{BEGINNINGS} prompts with the same ending gave {different} different outputs"
    if different < DIFFERENT:
        check.verdict = "refused"
        check.problems.append(
            f"{engine.name}: the model repeats itself whatever its prompt begins with: {BEGINNINGS} prompts that end "
            f"the same gave {different} different outputs (at least {DIFFERENT} are needed), such as "
            f"{_shown(said[0])}; equal outputs would prove nothing, so serve a trained model"
        )


async def look_at_engines_alone(probe: Probe, check: Check) -> None:
    """Compares engines that compute the same prompts alone.

    Args:
        probe: the engines.
        check: gets what is wrong.
    """
    first, *others = probe.whole_engines
    for prompt in _prompts(probe):
        reference = await probe.whole(first, prompt, OUTPUT)
        check.requests += 1
        for engine in others:
            reply = await probe.whole(engine, prompt, OUTPUT)
            check.requests += 1
            check.problems += _different(engine.name, reply, first.name, reference, prompt)
    check.words = f"{check.requests} requests to {1 + len(others)} engines, {OUTPUT} tokens each"


async def look_at_pairs(probe: Probe, check: Check) -> None:
    """Compares every pair with an engine that computes the prompt itself.

    Each pair gets prompts of its own, and is asked before the engine that it is compared with; that one is another
    engine where there is one. So nobody finds in its prefix cache what it should have pulled or computed.

    Args:
        probe: the engines.
        check: gets what is wrong.
    """
    for prefill, decode in probe.pairs:
        name = f"{prefill.name} → {decode.name}"
        for prompt in _prompts(probe):
            _, reply = await probe.two_legs(prefill, decode, prompt, OUTPUT)
            other = await _another(probe, prefill, decode)
            reference = await probe.whole(other, prompt, OUTPUT)
            check.requests += 2
            if reference.cached_tokens and other is decode:
                check.verdict = "refused"
                check.problems.append(
                    f"{name}: {other.name} alone took {reference.cached_tokens} tokens from its prefix cache, where "
                    "the transferred ones are; nothing would be proved, so start it with VLLM_SERVER_DEV_MODE=1"
                )
                break
            check.problems += _different(name, reply, f"{other.name} alone", reference, prompt)
    check.words = f"{len(probe.pairs)} pairs, {check.requests} requests, {OUTPUT} tokens each"


async def _another(probe: Probe, prefill: Engine, decode: Engine) -> Engine:
    """An engine that has not got the KV of a prompt by transfer over this pair."""
    others = probe.decode
    if len(others) > 1:
        return others[(others.index(decode) + 1) % len(others)]
    # The only decode engine forgets what it has pulled, or the prefill engine goes on from what it computed itself.
    return decode if await probe.reset_prefix_cache(decode) else prefill


def _prompts(probe: Probe) -> list[Prompt]:
    """New prompts: within a block, over blocks with a rest, and longer."""
    block = probe.engines[0].block_size
    longest = probe.context - OUTPUT
    return [probe.prompt(min(length, longest)) for length in (block - 1, 2 * block + 1, 5 * block)]


def _different(name: str, reply: Reply, other: str, reference: Reply, prompt: Prompt) -> list[str]:
    """The difference between two outputs, if there is one."""
    one, two = reply.said, reference.said
    if one == two:
        return []
    if not isinstance(one, tuple) or not isinstance(two, tuple):
        one, two = reply.text, reference.text
    place = next((k for k, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), len(one))
    what = "token" if isinstance(one, tuple) else "character"
    return [
        f"{name}: {what} {place + 1} after a prompt of {len(prompt)} tokens differs: {name} said {_shown(one)}, "
        f"{other} said {_shown(two)}"
    ]


def _shown(said: tuple[int, ...] | str) -> str:
    return repr(said) if isinstance(said, str) else " ".join(str(token) for token in said)
