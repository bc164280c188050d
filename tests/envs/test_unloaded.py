from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import cluster_config, profiles, targets, unloaded
from disaggroute.envs.cluster import Cluster, EngineSpec
from disaggroute.envs.simulator.reference import run_reference
from disaggroute.envs.trace import Trace

FAR = 10**15


def trace_of(prompt: list[int], output: list[int], ttft: Any = 1, tpot: Any = 1) -> Trace:
    n = len(prompt)
    return Trace(
        arrival=np.arange(n) * FAR,
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        slo=np.zeros(n, np.int8),
        family=np.zeros(n, np.int8),
        ttft_target=np.broadcast_to(np.int64(ttft), n) if np.isscalar(ttft) else np.array(ttft),
        tpot_target=np.broadcast_to(np.int64(tpot), n) if np.isscalar(tpot) else np.array(tpot),
    )


@st.composite
def engines(draw: st.DrawFn) -> EngineSpec:
    seqs = draw(st.integers(1, 4))
    small = st.integers(0, 9)
    table = [0, *(draw(small) for _ in range(seqs))]
    return EngineSpec(
        base_decode=draw(st.integers(1, 9)),
        base_prefill=draw(st.integers(1, 9)),
        base_mixed=draw(st.integers(1, 9)),
        batch=np.array(table, np.int64),
        per_context=draw(small),
        per_token=draw(small),
        per_token_sq=draw(small),
        block_size=4,
        num_blocks=draw(st.integers(20, 30)),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        max_model_len=1000,
        egress_per_block=draw(st.integers(1, 9)),
        latency=draw(small),
        lease=0,
    )


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5)


def times(trace: Trace, cluster: Cluster, pair: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    n = len(trace)
    assignment = (np.full(n, pair[0]), np.full(n, pair[1]))
    records = run_reference(trace, cluster, assignment=assignment, observe=False).records
    first = records["first_token"] - records["arrival"]
    return first, records["last_token"] - records["first_token"]


@given(engines(), engines(), LENGTHS, st.sampled_from(["decode", "prefill"]))
def test_a_request_alone_takes_what_the_simulator_says(
    prefill: EngineSpec, decode: EngineSpec, lengths: list[tuple[int, int]], first_token: Any
) -> None:
    trace = trace_of(*map(list, zip(*lengths, strict=True)))
    cluster = Cluster(prefill=(prefill,), decode=(decode,), first_token=first_token, poll_interval=FAR)
    alone = unloaded.disaggregated(trace.prompt, trace.output, prefill, decode, first_token)
    ttft, span = times(trace, cluster, (0, 0))
    assert alone.ttft.tolist() == ttft.tolist()
    assert alone.span.tolist() == span.tolist()
    assert alone.e2e.tolist() == (ttft + span).tolist()


@given(engines(), LENGTHS)
def test_so_does_one_on_a_mixed_instance(engine: EngineSpec, lengths: list[tuple[int, int]]) -> None:
    trace = trace_of(*map(list, zip(*lengths, strict=True)))
    alone = unloaded.aggregated(trace.prompt, trace.output, engine)
    ttft, span = times(trace, Cluster(mixed=(engine,), poll_interval=FAR), (0, 0))
    assert alone.ttft.tolist() == ttft.tolist()
    assert alone.span.tolist() == span.tolist()


def test_a_latency_of_the_pair_replaces_the_instances() -> None:
    engine = profiles.load("a40-qwen2.5-3b").engine()
    usual = unloaded.disaggregated([100], [10], engine, engine)
    slower = unloaded.disaggregated([100], [10], engine, engine, latency=engine.latency + 7)
    assert (slower.ttft - usual.ttft).tolist() == [7]


def test_tpot_is_the_span_per_token_after_the_first() -> None:
    engine = profiles.load("a40-qwen2.5-3b").engine()
    alone = unloaded.disaggregated([100, 100], [1, 11], engine, engine)
    assert alone.tpot.tolist() == [0.0, alone.span[1] / 10]


def test_the_a40_profile_serves_a_chat_request_in_time_and_a_long_prompt_too_late() -> None:
    cluster = cluster_config.load("2p4d-a40").build()
    slo = np.zeros(2, np.int8)
    trace = trace_of([100, 8000], [100, 100])
    fixed = targets.fixed(slo, profiles.load("a40-qwen2.5-3b"))
    trace = replace(trace, ttft_target=fixed[0], tpot_target=fixed[1])
    assert unloaded.infeasible(trace, cluster).tolist() == [False, True]
    assert unloaded.ceiling(trace, cluster) == 0.5


def test_a_target_that_is_just_met_is_met() -> None:
    cluster = cluster_config.load("2p4d-a40").build()
    alone = unloaded.fastest([500, 500, 500], [7, 7, 7], cluster)
    ttft, step = int(alone.ttft[0]), -(-int(alone.span[0]) // 6)
    trace = trace_of([500] * 3, [7] * 3, [ttft, ttft - 1, ttft], [step, step, step - 1])
    assert unloaded.infeasible(trace, cluster).tolist() == [False, True, True]


def test_in_a_cluster_of_unlike_instances_a_request_is_feasible_if_some_pair_serves_it() -> None:
    config = cluster_config.from_topology(
        "1P1D",
        "a40-qwen2.5-3b",
        prefill=[{"count": 1, "profile": p} for p in ("a40-qwen2.5-3b", "h100-qwen2.5-3b")],
    )
    cluster = config.build()
    fast = unloaded.disaggregated([900], [5], cluster.prefill[1], cluster.decode[0])
    assert unloaded.fastest([900], [5], cluster).ttft == fast.ttft
    trace = trace_of([900], [5], int(fast.ttft[0]), 10**12)
    assert not unloaded.infeasible(trace, cluster)[0]


def test_an_empty_trace_has_ceiling_one() -> None:
    assert unloaded.ceiling(trace_of([], []), cluster_config.load("2p4d-a40").build()) == 1.0


def test_a_prompt_of_the_context_limit_stays_inside_int64() -> None:
    engine = profiles.load("h100-llama-3.1-70b").engine()
    alone = unloaded.disaggregated([100_000], [31_072], engine, engine)
    exact = 13 * engine.base_prefill + engine.per_token * 100_000 + engine.per_token_sq * 100_000**2
    exact += 6250 * engine.egress_per_block + engine.latency + engine.step_time(1, 100_000)
    assert alone.ttft.tolist() == [exact]
    assert alone.span[0] == sum(engine.step_time(1, 100_000 + j) for j in range(1, 31_072))


@pytest.mark.parametrize(("slo", "factor"), [(0, 3), (1, 9)])
def test_relative_targets_are_three_and_nine_times_the_time_alone(slo: int, factor: int) -> None:
    profile = profiles.load("a40-qwen2.5-3b")
    ttft, tpot = targets.relative(np.array([slo], np.int8), profile, np.array([1234]))
    assert ttft.tolist() == [1234 * factor]
    assert tpot.tolist() == [profile.slo_targets.tpot[slo]]
