"""The plan: everything fits the engines, tells the constants apart, and is the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disaggroute.envs import profiles
from disaggroute.live.calibration.plan import (
    FEWEST_ROUNDS,
    FULL,
    LEAST_KV,
    MOST_ROUNDS,
    QUICK,
    Effort,
    Task,
    tasks_of,
)
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.gate.token_counts import LEAST_CONTEXT
from disaggroute.live.probe import Probe

from ..waiting import run

EFFORTS = st.sampled_from([FULL, QUICK])
CONTEXTS, BLOCKS = st.integers(LEAST_CONTEXT, 140_000), st.integers(LEAST_KV // 16, 100_000)


def plan(effort: Effort, *, blocks: int = 3750, context: int = 32_768, mixed: bool = False) -> list[list[Task]]:
    """The plan for engines that were met."""
    pools = {"mixed": 2} if mixed else {"prefill": 1, "decode": 2}
    ports = iter(range(9000, 9100))
    entries = {role: [{"url": f"http://h:{next(ports)}"} for _ in range(count)] for role, count in pools.items()}
    cluster = LiveCluster.load({"model": "m", "profile": "a40-qwen2.5-3b", **entries})

    async def made() -> list[list[Task]]:
        probe = Probe(cluster)
        for engine in probe.engines:
            engine.blocks, engine.block_size, engine.max_model_len = blocks, 16, context
        return tasks_of(probe, effort)

    return run(made())


@settings(max_examples=40, deadline=None)
@given(EFFORTS, CONTEXTS, BLOCKS, st.booleans())
def test_every_task_fits_the_engines(effort: Effort, context: int, blocks: int, mixed: bool) -> None:
    for task in [task for tasks in plan(effort, blocks=blocks, context=context, mixed=mixed) for task in tasks]:
        longest = task.prompt + max(task.output, task.longest_output)
        assert longest <= context and task.output <= max(task.longest_output, 1)
        assert -(-longest // 16) * task.sequences <= blocks
        assert task.sequences <= 256 and (task.kind == "round-trip" or (task.prompt > 0 and task.output > 0))


@settings(max_examples=20, deadline=None)
@given(EFFORTS, CONTEXTS, BLOCKS)
def test_two_rounds_tell_all_constants_apart(effort: Effort, context: int, blocks: int) -> None:
    tasks = [task for tasks in plan(effort, blocks=blocks, context=context)[:FEWEST_ROUNDS] for task in tasks]
    decode = {(1.0, t.sequences, t.sequences * (t.prompt + 20)) for t in tasks if t.kind == "decode"}
    prefill = {(1.0, t.prompt, t.prompt**2) for t in tasks if t.kind == "prefill"}
    transfer = {(1.0, -(-t.prompt // 16)) for t in tasks if t.kind == "transfer"}
    for columns, rank in ((decode, 3), (prefill, 3), (transfer, 2)):
        matrix = np.array(sorted(columns), np.float64)
        assert np.linalg.matrix_rank(matrix / np.linalg.norm(matrix, axis=0)) == rank


def test_rounds_are_the_same_every_time_in_another_order_each() -> None:
    one, same = plan(FULL), plan(FULL)
    assert [[task.key for task in tasks] for tasks in one] == [[task.key for task in tasks] for tasks in same]
    prefills = [[task.prompt for task in tasks if task.kind == "prefill"] for tasks in one]
    assert sorted(prefills[0]) == sorted(prefills[1]) != prefills[0] != prefills[1]
    keys = [task.key for tasks in one for task in tasks]
    assert len(set(keys)) == len(keys)


def test_the_time_that_is_allowed_decides_on_the_rounds() -> None:
    assert len(plan(replace(FULL, seconds=1.0))) == FEWEST_ROUNDS
    assert len(plan(replace(FULL, seconds=1e6))) == MOST_ROUNDS


def test_prefills_reach_from_short_to_the_context_limit() -> None:
    lengths = sorted({task.prompt for task in plan(FULL, context=8_192)[0] if task.kind == "prefill"})
    assert len(lengths) == 9 and lengths[0] == 16 and lengths[-1] == 8_191


@pytest.mark.parametrize(("effort", "most"), [(FULL, 200.0), (QUICK, 20.0)])
def test_a_round_takes_as_long_as_it_says(effort: Effort, most: float) -> None:
    spec = profiles.load("a40-qwen2.5-3b").engine()
    (tasks, *_) = plan(effort)
    assert sum(task.expected_s for task in tasks) < most
    prefill = next(task for task in tasks if task.kind == "prefill")
    assert prefill.expected_s == pytest.approx(spec.prompt_time(prefill.prompt) / 1e12)


def test_too_small_a_kv_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decode/0 has a KV cache of 1008 tokens; batches .* need at least 1,024"):
        plan(QUICK, blocks=63)
