"""What Dynamo is given to read, and what is read of what it tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.benchmarks.peers import dynamo
from disaggroute.benchmarks.peers.match import Match
from disaggroute.envs import traces
from disaggroute.envs.trace import Trace


def told(trace: Trace, **changes: Any) -> list[dict[str, Any]]:
    """What Dynamo could tell of the requests, all but the first changed by nothing."""
    rows = [
        {
            "arrival_time_ms": arrival / 1e9,
            "input_length": prompt,
            "output_length": output,
            "first_token_ms": arrival / 1e9 + 10.0,
            "last_token_ms": arrival / 1e9 + 10.0 + 3.0 * (output - 1),
            "prefill_worker_idx": k % 2,
            "decode_worker_idx": k % 3,
            "readmission_count": 0,
        }
        for k, (arrival, prompt, output) in enumerate(
            zip(trace.arrival.tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=True)
        )
    ]
    rows[0] |= changes
    return rows


def test_the_tables_give_the_step_times_of_our_engine(drawn: Match, tmp_path: Path) -> None:
    engine = drawn.cluster.decode[0]
    file = tmp_path / "tables.npz"
    file.write_bytes(dynamo.step_tables(engine))
    tables = np.load(file)
    assert set(tables) == {
        "prefill_isl",
        "prefill_ttft_ms",
        "decode_active_kv_tokens",
        "decode_context_length",
        "decode_itl",
    }
    assert {tables[name].dtype for name in tables} == {np.dtype("f8")}
    for tokens in (1, 700, 8_192):
        line = np.interp(tokens, tables["prefill_isl"], tables["prefill_ttft_ms"])
        assert line == pytest.approx(engine.step_time(0, 0, tokens) / 1e9, rel=1e-12)
    for sequences, mean in ((1, 1), (1, 9_000), (60, 750), (256, 200)):
        at_context = tables["decode_itl"][:, mean - 1]
        step = np.interp(sequences * mean, tables["decode_active_kv_tokens"], at_context)
        assert tables["decode_context_length"][mean - 1] == mean
        assert step == pytest.approx(engine.step_time(sequences, sequences * mean) / 1e9, rel=1e-12)


def test_step_times_that_the_tables_cannot_hold_are_refused(drawn: Match) -> None:
    engine = drawn.cluster.decode[0]
    with pytest.raises(ValueError, match="per_prefill_token_sq_ns is not 0; Dynamo's prefill steps have no such term"):
        dynamo.step_tables(replace(engine, per_token_sq=1))
    bent = engine.batch.copy()
    bent[-1] += 1
    with pytest.raises(ValueError, match="batch_us is given; Dynamo's tables can only be given per_sequence_us"):
        dynamo.step_tables(replace(engine, batch=bent))


def test_the_engines_of_dynamo_have_the_limits_of_ours(drawn: Match) -> None:
    options = dynamo.replay_options(drawn.cluster, "tables.npz", 36_864)
    assert options["num_prefill_workers"] == 2 and options["num_decode_workers"] == 4
    assert options["router_mode"] == "round_robin" and options["replay_mode"] == "offline"
    for role in ("prefill", "decode"):
        engine = options[f"{role}_engine_args"]["engine"]
        assert engine["worker_type"] == role
        assert engine["num_gpu_blocks"] * engine["block_size"] == 60_000
        assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (256, 8_192)
        assert engine["kv_transfer_bandwidth"] == pytest.approx(20) and not engine["enable_prefix_caching"]
        assert engine["timing_model"]["config"] == {"path": "tables.npz"}


def test_the_trace_for_dynamo_is_read_back_as_the_same_requests(drawn: Match, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(dynamo.trace_lines(drawn.trace))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [round(row["timestamp"] * 1e9) for row in rows] == drawn.trace.arrival.tolist()
    blocks = [block for row in rows for block in row["hash_ids"]]
    assert len(set(blocks)) == len(blocks)
    assert [len(row["hash_ids"]) for row in rows] == (-(-drawn.trace.prompt // 512)).tolist()
    again = traces.read(file)
    assert again.format == "mooncake"
    assert (again.prompt == drawn.trace.prompt).all() and (again.output == drawn.trace.output).all()
    assert dynamo.trace_lines(drawn.trace, 3) == "".join(file.read_text().splitlines(keepends=True)[:3])


def test_the_records_of_dynamo_are_read_in_the_order_of_the_trace(drawn: Match) -> None:
    rows = told(drawn.trace, readmission_count=2)
    read = dynamo.read_requests(rows[::-1], drawn.trace)
    assert read.delays.ttft == pytest.approx(0.01) and read.preemptions == 2
    many = drawn.trace.output > 1
    assert read.delays.tpot[many] == pytest.approx(0.003) and np.isnan(read.delays.tpot[~many]).all()
    assert read.prefill.tolist() == [k % 2 for k in range(len(drawn.trace))]
    assert read.decode.tolist() == [k % 3 for k in range(len(drawn.trace))]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"first_token_ms": None}, "Dynamo tells no first_token_ms of a request; its version may be another"),
        ({"arrival_time_ms": 0.5}, "Dynamo's requests are not those of the trace: it changed arrivals or lengths"),
        ({"output_length": 99_999}, "Dynamo's requests are not those of the trace: it changed arrivals or lengths"),
    ],
)
def test_records_that_do_not_fit_the_trace_are_refused(drawn: Match, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        dynamo.read_requests(told(drawn.trace, **changes), drawn.trace)


def test_missing_records_are_refused(drawn: Match) -> None:
    with pytest.raises(RuntimeError, match="Dynamo tells of 199 requests; the trace has 200"):
        dynamo.read_requests(told(drawn.trace)[1:], drawn.trace)
