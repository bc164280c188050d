from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import cluster_config, profiles, traces, unloaded
from disaggroute.envs.cluster import PS_PER_S

A40 = "a40-qwen2.5-3b"


def file_of(tmp_path: Path, rows: list[tuple[float, int, int]]) -> traces.TraceFile:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{a},{p},{o}\n" for a, p, o in rows))
    return traces.read(path)


@pytest.fixture
def regular(tmp_path: Path) -> traces.TraceFile:
    return file_of(tmp_path, [(float(k), 100 + k, 10) for k in range(100)])


@pytest.fixture
def quantised(tmp_path: Path) -> traces.TraceFile:
    rows = [(3000 * (k // 8), 100 + k) for k in range(800)]
    rows += [(600_000, 1000), (600_000, 1001)]  # after a long silence
    line = '{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": [%d, 7]}\n'
    (tmp_path / "m.jsonl").write_text("".join(line % (t, p, p) for t, p in rows))
    return traces.read(tmp_path / "m.jsonl")


def test_a_slice_counts_time_from_its_start(regular: traces.TraceFile) -> None:
    trace, report = regular.prepare(start_s=10.5, end_s=20)
    assert trace.prompt.tolist() == list(range(111, 120))
    assert trace.arrival[0] == PS_PER_S // 2
    assert (report.outside, report.kept) == (91, 9)


def test_rescaling_gives_the_rate_asked_for(regular: traces.TraceFile) -> None:
    trace, report = regular.prepare(rate=4)
    assert report.rate == pytest.approx(4)
    assert trace.arrival.tolist() == [k * PS_PER_S // 4 for k in range(100)]


def test_requests_over_the_context_limit_or_the_kv_cache_are_left_out_and_counted(tmp_path: Path) -> None:
    file = file_of(tmp_path, [(0, 100, 10), (1, 1990, 11), (2, 1989, 11), (3, 900, 200), (4, 1, 1)])
    config = cluster_config.from_topology(
        "1P1D", A40, decode={"overrides": {"max_model_len": 2000, "kv_tokens": 1056}}
    )
    trace, report = file.prepare(cluster=config.build())
    assert trace.prompt.tolist() == [100, 1]
    assert (report.over_context, report.over_kv, report.kept) == (1, 2, 2)
    assert report.filtered_share == 0.6


@pytest.mark.parametrize("first_token", ["decode", "prefill"])
@pytest.mark.parametrize("topology", ["1P1D", "1M"])
def test_what_is_kept_fits_and_what_is_left_out_does_not(
    tmp_path: Path, first_token: str, topology: str
) -> None:
    rows = [(0.0, p, o) for p in range(1, 40, 3) for o in (1, 2, 15, 16, 17)]
    file = file_of(tmp_path, rows)
    small = {"kv_tokens": 32, "max_model_len": 50}
    role = "mixed" if topology == "1M" else "decode"
    config = cluster_config.from_topology(
        topology, A40, first_token=first_token, **{role: {"overrides": small}}
    )
    cluster = config.build()
    trace, _ = file.prepare(cluster=cluster)
    trace.check_fits(cluster)
    kept = set(zip(trace.prompt.tolist(), trace.output.tolist(), strict=True))
    whole = file.to_trace()
    for k, (_, p, o) in enumerate(rows):
        one = whole.select(slice(k, k + 1))
        if (p, o) in kept:
            one.check_fits(cluster)
        else:
            with pytest.raises(ValueError, match="needs"):
                one.check_fits(cluster)


def test_classes_have_their_share_and_belong_to_the_row(shared_data: Path) -> None:
    file = traces.read(shared_data / "traces" / "azure2023_conv.csv.gz")
    whole = file.to_trace(tight_share=0.3, seed=1)
    assert (whole.slo == 0).mean() == pytest.approx(0.3, abs=0.01)
    part = file.to_trace(tight_share=0.3, seed=1, end_s=600, rate=2)
    assert (part.slo == whole.slo[: len(part)]).all()
    assert (file.to_trace(tight_share=0.3, seed=2).slo != whole.slo).any()


def test_the_files_own_classes_are_kept_unless_a_share_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,slo\n0,1,1,loose\n1,1,1,tight\n")
    file = traces.read(path)
    assert file.to_trace().slo.tolist() == [1, 0]
    assert file.to_trace(tight_share=1).slo.tolist() == [0, 0]


def test_the_infeasible_share_is_that_of_the_requests_that_miss_alone(shared_data: Path) -> None:
    file = traces.read(shared_data / "traces" / "mooncake_conversation.jsonl.gz")
    cluster = cluster_config.load("2p4d-a40").build()
    trace, report = file.prepare(A40, cluster, tight_share=0.5)
    assert report.infeasible == unloaded.infeasible(trace, cluster).sum()
    assert 0.5 < 1 - report.ceiling < 0.65
    assert report.ceiling == pytest.approx(unloaded.ceiling(trace, cluster))
    _, relative = file.prepare(A40, cluster, target_kind="relative")
    assert (relative.infeasible, relative.targets, relative.ceiling) == (0, "relative", 1.0)


def test_fixed_targets_come_from_the_profile(regular: traces.TraceFile) -> None:
    trace = regular.to_trace("h100-qwen3-8b")
    assert (trace.ttft_target == np.array(profiles.load("h100-qwen3-8b").slo_targets.ttft)[trace.slo]).all()


def test_the_report_is_ready_to_print(regular: traces.TraceFile) -> None:
    text = str(regular.prepare(start_s=50)[1])
    assert "(disaggroute): 50 of 100 requests, 1.000 per second" in text
    assert (
        "50 outside the slice, 0 over the context limit, 0 over the KV cache (filtered share 0.00%)" in text
    )
    assert "infeasible with fixed targets: 0 miss even alone (0.00%; ceiling 1.0000)" in text


def test_prefixes_follow_their_requests(quantised: traces.TraceFile) -> None:
    trace = quantised.to_trace(start_s=30, end_s=60)
    assert trace.prefix_offsets is not None
    assert trace.prefix_ids is not None
    assert trace.prefix_offsets.tolist() == list(range(0, 2 * len(trace) + 1, 2))
    assert (trace.prefix_ids[::2] == trace.prompt).all()
    assert (trace.prefix_ids[1::2] == 7).all()


@pytest.mark.parametrize("how", ["random", "even"])
def test_quantised_arrivals_are_spread_inside_their_quantum_in_order(
    quantised: traces.TraceFile, how: Any
) -> None:
    spread = quantised.spread_arrivals(how, seed=1)
    assert (np.diff(spread) >= 0).all()
    assert (spread >= quantised.arrival).all()
    assert (spread < quantised.arrival + 3 * PS_PER_S).all()
    assert len(np.unique(spread)) == len(spread)


def test_spreading_evenly_gives_equal_gaps_and_at_random_poisson_ones(quantised: traces.TraceFile) -> None:
    even = np.diff(quantised.spread_arrivals("even")[:800])
    assert even.std() / even.mean() < 1e-6
    random = np.diff(quantised.spread_arrivals("random", 1)[:800])
    assert random.std() / random.mean() == pytest.approx(1.0, abs=0.2)  # 8 in every quantum: a little below


def test_spreading_is_seeded_and_can_be_left(quantised: traces.TraceFile) -> None:
    one, again, other = (quantised.spread_arrivals(seed=s) for s in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
    assert (quantised.spread_arrivals("none") == quantised.arrival).all()


def test_exact_arrivals_are_never_spread(regular: traces.TraceFile) -> None:
    assert (regular.spread_arrivals() == regular.arrival).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start_s": -1}, "start_s is -1; it must be at least 0 s"),
        ({"start_s": 5, "end_s": 5}, r"end_s is 5; it must be greater than start_s \(5\)"),
        ({"rate": 0}, "rate is 0; it must be greater than 0 requests per second"),
        ({"tight_share": 2}, "tight_share is 2; it must be between 0 and 1"),
        ({"spread": "evenly"}, "spread is 'evenly'; it must be random, even or none"),
        ({"target_kind": "strict"}, "target_kind is 'strict'; it must be fixed or relative"),
        ({"start_s": 1000}, r"no request is left of 100; 0 lie between start and end"),
        ({"end_s": 0.5, "rate": 1}, r"all requests \(1\) arrive at one instant; they have no rate to scale"),
        ({"profile": "a41"}, "unknown profile 'a41'"),
    ],
)
def test_a_bad_option_is_refused(regular: traces.TraceFile, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        regular.prepare(**options)
