"""What is measured: lengths, batches and pairs, gone through in rounds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import ceil

from ...envs.cluster import PS_PER_S, EngineSpec
from ..engine import Engine
from ..probe import Probe
from .measurement import Key, Kind

SHORTEST_PROMPT = 16

CONTEXTS = (64, 1_024, 8_192)
"""Prompts of decode measurements."""

LONGEST_TRANSFER = 8_192
"""Tokens: their time grows evenly, and the prefill before them does not."""

LEAST_KV, LEAST_BATCH = 1_024, 4
"""Tokens that an engine's KV cache must hold, and requests that must fit it at a time."""

KV_SHARE = 0.7
"""Part of an engine's KV cache that a batch may fill: nothing may be preempted."""

FEWEST_ROUNDS, MOST_ROUNDS = 2, 6

LONGER = 4
"""An answer is at most so many times as long as the steady state that it is for."""

RAMP_S = 0.002
"""Wall seconds within which a request of a batch is on its way."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        longest: tokens of the longest prompt, where the context allows it.
        prefilled: prompt tokens of all requests of a batch: they are only the way to the steady state.
        lengths: prompt lengths of prefills.
        transfers: prompt lengths of transfers.
        sequences: most requests in a batch.
        every: of the powers of two of batch sizes, each round takes one in so many.
        steps: decode steps of a batch in steady state.
        seconds: that the rounds together may take, as the cluster's profile so far has it.
    """

    longest: int
    prefilled: int
    lengths: int
    transfers: int
    sequences: int
    every: int
    steps: int
    seconds: float


FULL = Effort(32_768, 16_384, lengths=9, transfers=5, sequences=256, every=2, steps=48, seconds=240.0)
QUICK = Effort(2_048, 8_192, lengths=6, transfers=4, sequences=16, every=2, steps=24, seconds=15.0)


@dataclass(frozen=True)
class Task:
    """One thing to measure; the fields are those of `Measurement`.

    Attributes:
        output: tokens of each answer.
        expected_s: seconds of the engines that it takes by the profile so far.
        longest_output: of each answer, where requests that come slowly do not run together for long enough.
    """

    kind: Kind
    engine: Engine
    peer: Engine | None
    round: int
    prompt: int
    sequences: int
    output: int
    expected_s: float
    longest_output: int = 1

    @property
    def key(self) -> Key:
        """What is measured."""
        peer = self.peer.name if self.peer else ""
        return self.kind, self.engine.name, peer, self.round, self.prompt, self.sequences


def tasks_of(probe: Probe, effort: Effort) -> list[list[Task]]:
    """Rounds of tasks; the same for the same engines and effort.

    Within a round the order is random, so that nothing that drifts looks like an effect of a length or a batch.

    Raises:
        ValueError: an unknown profile, or an engine whose KV cache is too small.
    """
    for engine in probe.whole_engines:
        held = engine.blocks * engine.block_size
        if held < LEAST_KV:
            raise ValueError(
                f"{engine.name} has a KV cache of {held} tokens; batches of several sizes need at least {LEAST_KV:,}"
            )
    # Prompts need room beside the longest answers.
    capacity = KV_SHARE * min(engine.blocks * engine.block_size for engine in probe.whole_engines)
    room = min((probe.context - CONTEXTS[0]) // (2 * LONGER), int(capacity / LEAST_BATCH - CONTEXTS[0]) // LONGER)
    effort = replace(effort, steps=max(8, min(effort.steps, room)))
    one = _round(probe, effort, 0)
    expected = sum(task.expected_s for task in one)
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(effort.seconds / expected)))
    return [_shuffled(one, 0), *(_shuffled(_round(probe, effort, k), k) for k in range(1, rounds))]


def _shuffled(tasks: list[Task], number: int) -> list[Task]:
    first = [task for task in tasks if task.kind == "round-trip"]
    rest = [task for task in tasks if task.kind != "round-trip"]
    random.Random(number).shuffle(rest)
    return [*first, *rest]


def _round(probe: Probe, effort: Effort, number: int) -> list[Task]:
    tasks: list[Task] = []
    specs = {engine: engine.spec(probe.cluster) for engine in probe.engines}
    longest = min(probe.context - 1, effort.longest)
    if number == 0:
        tasks += [Task("round-trip", engine, None, 0, 0, 0, 0, 0.01) for engine in probe.engines]
    for engine in probe.prefill or probe.mixed:
        for length in spaced(SHORTEST_PROMPT, longest, effort.lengths):
            tasks.append(Task("prefill", engine, None, number, length, 1, 1, _prefill_s(specs[engine], length)))
    for engine in probe.whole_engines:
        for prompt, sequences in batches(specs[engine], probe.context, effort, number):
            output = _output(specs[engine], prompt, sequences, effort.steps, probe.cluster.time_scale)
            step = specs[engine].step_time(sequences, sequences * (prompt + output // 2)) / PS_PER_S
            ramp = _prefill_s(specs[engine], prompt) * sequences
            expected, longest_output = output * step + ramp, LONGER * effort.steps - 1
            task = Task("decode", engine, None, number, prompt, sequences, output, expected, longest_output)
            tasks.append(task)
    for prefill, decode in probe.pairs:
        for length in spaced(4 * SHORTEST_PROMPT, min(longest, LONGEST_TRANSFER), effort.transfers):
            expected = _prefill_s(specs[prefill], length) + 0.05
            tasks.append(Task("transfer", prefill, decode, number, length, 1, 1, expected))
    return tasks


def spaced(low: int, high: int, count: int) -> list[int]:
    """Lengths from low to high, each the same factor above the one before."""
    return sorted({round(low * (high / low) ** (k / (count - 1))) for k in range(count)})


def batches(spec: EngineSpec, context: int, effort: Effort, number: int) -> list[tuple[int, int]]:
    """(prompt tokens, requests) of decode measurements: many short contexts, and few long ones.

    Args:
        spec: limits of the engine.
        context: prompt and output tokens that it takes.
        effort: how many.
        number: of the round; the rounds take turns with the batch sizes.
    """
    capacity = KV_SHARE * spec.num_blocks * spec.block_size
    sizes = [size for k in range(20) if (size := 1 << k) <= min(effort.sequences, spec.max_num_seqs)]
    found: list[tuple[int, int]] = []
    for prompt in CONTEXTS:
        for place, size in enumerate(sizes):
            grown = prompt + LONGER * effort.steps
            fits = grown <= context and size * grown <= capacity and size * prompt <= effort.prefilled
            if fits and place % effort.every == number % effort.every:
                found.append((prompt, size))
    if number % effort.every == 0 and len({prompt for prompt, _ in found}) < 2:
        # A small cache or context: one long prompt tells contexts apart.
        grown = int(min(context, capacity)) - LONGER * effort.steps
        found.append((max(grown, CONTEXTS[0] + 1), 1))
    return found


def _output(spec: EngineSpec, prompt: int, sequences: int, steps: int, time_scale: float) -> int:
    """Tokens of each answer, so that all requests run together for so many steps."""
    chunks = ceil(prompt * sequences / spec.max_num_batched_tokens)
    step_s = spec.step_time(sequences, sequences * prompt) / PS_PER_S * time_scale
    late = ceil(sequences * RAMP_S / step_s)
    return min(steps + 8 + 2 * chunks + min(late, 2 * steps), LONGER * steps - 1)


def _prefill_s(spec: EngineSpec, length: int) -> float:
    return spec.prompt_time(length) / PS_PER_S
