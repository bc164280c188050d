"""Doing what the plan says: one task at a time, with nobody else on the engines."""

from __future__ import annotations

import asyncio
from statistics import median

from ..engine_counts import Counted
from ..probe import Probe
from ..reply import Reply
from .measurement import NOT_TOLD, Measurement
from .plan import Task

LEAST_STEPS = 8
"""Steps in steady state without which a batch says nothing."""

ASK_AGAIN_S = 0.01
"""Wall seconds after which an engine is asked again what it has counted of a batch under way."""


async def measure(probe: Probe, task: Task) -> Measurement | None:
    """Measures one thing.

    Args:
        probe: the engines, on which nothing else runs.
        task: what.

    Returns:
        Its row; None when a batch had no steady state.

    Raises:
        Busy: somebody else uses the engines.
        Failed: an engine did not answer as it should.
        Unreachable: one did not answer.
    """
    await probe.wait_idle()
    return await _KINDS[task.kind](probe, task)


async def _round_trip(probe: Probe, task: Task) -> Measurement | None:
    return _row(task, await probe.round_trip(task.engine))


async def _transfer(probe: Probe, task: Task) -> Measurement:
    """A decode leg, what the engine counts of its transfer, and the bytes that it moved."""
    assert task.peer is not None
    before = await asyncio.gather(probe.counted(task.engine), probe.counted(task.peer))
    _, reply = await probe.two_legs(task.engine, task.peer, probe.prompt(task.prompt), 1, stream=False)
    await probe.counted_after(task.engine, before[0], 1)
    for answers in (1, 2):  # A transfer is told with the engine's next answer, or the one after.
        await probe.whole(task.peer, probe.prompt(8), 1, stream=False)
        after = await probe.counted_after(task.peer, before[1], 1 + answers)
        if after.transfers != before[1].transfers:
            break
    if before[1].transfers < 0 or after.transfers != before[1].transfers + 1:
        return _row(task, reply.first_s)
    block = task.peer.block_size
    moved = (after.moved_bytes - before[1].moved_bytes) / (-(-task.prompt // block) * block)
    own = after.transfer_s - before[1].transfer_s
    told = own if 0 < own <= reply.first_s else NOT_TOLD
    return _row(task, reply.first_s, engine_seconds=told, bytes_per_token=moved)


async def _prefill(probe: Probe, task: Task) -> Measurement | None:
    before = await probe.counted(task.engine)
    reply = await probe.whole(task.engine, probe.prompt(task.prompt), 1, stream=False)
    after = await probe.counted_after(task.engine, before, 1)
    return _row(task, reply.first_s, engine_seconds=_own_count(before, after, reply.first_s))


def _own_count(before: Counted, after: Counted, seen: float) -> float:
    """The engine's own time of the one prefill between, if it tells one that can be: some count from 0."""
    if before.requests < 0 or after.requests != before.requests + 1:
        return NOT_TOLD
    own = after.prefill_s - before.prefill_s
    return own if 0 < own <= seen else NOT_TOLD


async def _decode(probe: Probe, task: Task) -> Measurement | None:
    """A batch, longer ones until one had a steady state; its steps by the engine's own count where it tells."""
    row = None
    for output in (task.output, 2 * task.output, task.longest_output):
        before = await probe.counted(task.engine)
        prompts = [probe.prompt(task.prompt) for _ in range(task.sequences)]
        length = min(output, task.longest_output)
        batch = asyncio.gather(*(probe.whole(task.engine, prompt, length) for prompt in prompts))
        told = await _told_while(probe, task, batch) if before.gaps >= 0 else []
        replies = await batch
        await probe.counted_after(task.engine, before, task.sequences)
        seen = steady_step(task, replies)
        row = counted_step(task, before, told, seen) or row or seen
        if row is not None and (row.engine_seconds != NOT_TOLD or not told):
            break
    return row


async def _told_while(probe: Probe, task: Task, batch: asyncio.Future[list[Reply]]) -> list[Counted]:
    """What the engine has counted, asked again and again until a batch has ended."""
    told = []
    try:
        while not batch.done():
            told.append(await probe.counted(task.engine))
            await asyncio.wait([batch], timeout=ASK_AGAIN_S)
    except BaseException:
        batch.cancel()
        raise
    return told


def counted_step(
    task: Task, before: Counted, told: list[Counted], seen: Measurement | None = None
) -> Measurement | None:
    """The mean time of a step by the engine's own count, while all requests of a batch decode.

    Between two counts in which all requests have had their first token and none has ended, every step has given each of
    them one token. What the client does, or the server that sends it the tokens, does not count.

    Args:
        task: what the batch was.
        before: what the engine had counted before it.
        told: what it counted meanwhile, in order.
        seen: the same batch as the client saw it; whose time is kept beside.

    Returns:
        A row; None when the counts hold too few steps.
    """
    steady = [
        count
        for count in told
        if count.first_tokens - before.first_tokens == task.sequences and count.requests == before.requests
    ]
    if not steady:
        return None
    first, last = steady[0], steady[-1]
    steps = int(last.gaps - first.gaps) // task.sequences
    if steps < LEAST_STEPS:
        return None
    seconds = (last.gap_s - first.gap_s) / (last.gaps - first.gaps)
    out = task.sequences + first.gaps - before.gaps
    context = task.sequences * (task.prompt + (steps - 1) / 2) + out
    by_client = seen.seconds if seen else seconds
    return _row(task, by_client, context=context, steps=steps, engine_seconds=seconds) if seconds > 0 else None


def steady_step(task: Task, replies: list[Reply]) -> Measurement | None:
    """The time of a step as the client sees it, while all requests of a batch decode.

    That is from the last of their first tokens, and a step more, to the first of their last ones. The time of a step is
    the median, over all streams and places, of what half of these steps take: what delays the client now and then,
    or a stream all the time, does not count.

    Args:
        task: what the batch was.
        replies: streamed answers.

    Returns:
        A row; None when they ran together for too few steps.
    """
    begin = max(reply.times[0] for reply in replies)
    end = min(reply.times[-1] for reply in replies)
    windows = [[k for k, when in enumerate(reply.times) if begin <= when <= end][1:] for reply in replies]
    steps = min(len(window) for window in windows) - 1
    if steps < LEAST_STEPS:
        return None
    half = steps // 2
    spans, context = [], 0.0
    for reply, window in zip(replies, windows, strict=True):
        first = window[0]
        times = reply.times[first : first + steps + 1]
        spans += [late - early for early, late in zip(times, times[half:], strict=False)]
        # Token k is times[k - 1]: the steps feed prompt + first + 1 … prompt + first + steps tokens.
        context += task.prompt + first + (1 + steps) / 2
    seconds = median(spans) / half
    return _row(task, seconds, context=context, steps=steps) if seconds > 0 else None


def _row(
    task: Task,
    seconds: float,
    *,
    context: float = 0.0,
    steps: int = 1,
    engine_seconds: float = NOT_TOLD,
    bytes_per_token: float = NOT_TOLD,
) -> Measurement:
    return Measurement(*task.key, context, steps, seconds, engine_seconds, bytes_per_token)


_KINDS = {
    "round-trip": _round_trip,
    "prefill": _prefill,
    "decode": _decode,
    "transfer": _transfer,
}
