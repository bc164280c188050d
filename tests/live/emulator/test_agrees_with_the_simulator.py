"""Emulated engines on the wall clock do what the simulator says, as far as a client can see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from disaggroute.envs import profiles
from disaggroute.envs.cluster import PS_PER_S, Cluster
from disaggroute.envs.simulator import simulate
from disaggroute.envs.trace import Trace

from .engines import Client, options, prefill, run, serving

SCALE = 0.5
PROMPTS = [900, 20, 300, 2000, 100, 700]
OUTPUTS = [400, 330, 260, 190, 120, 50]  # about 900 engine ms between two ends
ARRIVALS = [0.0, 0.02, 0.3, 0.35, 0.4, 0.6]


def trace() -> Trace:
    arrival = (np.array(ARRIVALS) * PS_PER_S).astype(np.int64)
    lengths = [np.array(column, np.int32) for column in (PROMPTS, OUTPUTS)]
    classes, targets = np.zeros(len(arrival), np.int8), np.full(len(arrival), PS_PER_S)
    return Trace(arrival, *lengths, classes, classes, targets, targets)


async def routed(index: int, start: float, first: Client, second: Client) -> tuple[float, float]:
    """Sends a request in two legs when it is due; engine seconds of its first and its last token."""
    await asyncio.sleep(start + ARRIVALS[index] * SCALE - time.monotonic())
    prompt = [7] * PROMPTS[index]
    parameters = await prefill(first, prompt)
    body = {"prompt": prompt, "max_tokens": OUTPUTS[index], "ignore_eos": True, "stream": True}
    body["kv_transfer_params"] = parameters
    seen: list[float] = []
    async with second.session.post(second.url + "/v1/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b'data: {"id"'):
                seen.append((time.monotonic() - start) / SCALE)
    assert len(seen) == OUTPUTS[index]
    return seen[0], seen[-1]


def test_requests_on_the_wall_clock_end_in_the_order_of_the_simulator(
    record_property: Callable[[str, object], None],
) -> None:
    spec = profiles.load("a40-qwen2.5-3b").engine()
    zeros = np.zeros(len(ARRIVALS), np.int64)
    records = simulate(trace(), Cluster((spec,), (spec,)), assignment=(zeros, zeros)).records
    expected = np.stack([records["first_token"], records["last_token"]], axis=1) / PS_PER_S
    seen = np.zeros_like(expected)

    async def work() -> None:
        async with serving(options("prefill", time_scale=SCALE), options("decode", time_scale=SCALE)) as (_, clients):
            start = time.monotonic() + 0.1
            seen[:] = await asyncio.gather(*(routed(i, start, *clients) for i in range(len(ARRIVALS))))

    run(work())
    late = 1e3 * (seen - expected)
    record_property(
        "emulated engines against the simulator",
        f"first tokens {np.median(late[:, 0]):.1f} engine ms later (median; {late[:, 0].min():.1f} to "
        f"{late[:, 0].max():.1f}), last tokens {np.median(late[:, 1]):.1f} ({late[:, 1].min():.1f} to "
        f"{late[:, 1].max():.1f})",
    )
    assert np.argsort(seen[:, 1]).tolist() == np.argsort(expected[:, 1]).tolist()
