"""A comparison with Dynamo without Dynamo: a stand-in answers in the form that it was seen to answer in."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from disaggroute import simulate
from disaggroute.__main__ import app
from disaggroute.benchmarks.peers import comparison, dynamo, installation, match, probes, processes
from disaggroute.benchmarks.peers.delays import Delays
from disaggroute.benchmarks.peers.match import Match
from disaggroute.benchmarks.peers.processes import Task, Times
from disaggroute.envs import traces
from disaggroute.envs.trace import Trace

REQUESTS = 200

STAND_IN = '''
"""What `dynamo.replay` looks like from outside: 5 ms to the first token, 2 ms for each further one."""
import json

class Report:
    pass

def run_trace_replay(trace, capture_per_request=False, **options):
    assert options["num_prefill_workers"] == 2 and options["num_decode_workers"] == 4
    rows = [json.loads(line) for line in open(trace)]
    start = rows[0]["timestamp"]
    report = Report()
    report.summary = {"completed_requests": len(rows), "wall_time_ms": 0.01}
    report.per_request = None
    if capture_per_request:
        report.per_request = [
            {
                "arrival_time_ms": row["timestamp"] - start,
                "input_length": row["input_length"],
                "output_length": row["output_length"],
                "first_token_ms": row["timestamp"] - start + 5.0,
                "last_token_ms": row["timestamp"] - start + 5.0 + 2.0 * (row["output_length"] - 1),
                "prefill_worker_idx": k % 2,
                "decode_worker_idx": k % 4,
                "readmission_count": 1 if k == 7 else 0,
            }
            for k, row in enumerate(rows)
        ][::-1]
    return report
'''


@pytest.fixture(scope="module")
def drawn() -> Match:
    return Match.make(REQUESTS, 0.8, 0)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that looks like Dynamo's environment; its Python is ours, and its Dynamo the stand-in."""
    folder = tmp_path / "environment"
    packages = folder / "packages"
    (packages / "dynamo").mkdir(parents=True)
    (packages / "dynamo" / "__init__.py").write_text("")
    (packages / "dynamo" / "replay.py").write_text(STAND_IN)
    for name in ("ai_dynamo", "ai_dynamo_runtime"):
        (packages / f"{name}-1.2.3.dist-info").mkdir()
        named = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.2.3\n"
        (packages / f"{name}-1.2.3.dist-info" / "METADATA").write_text(named)
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    mark(folder, complete=True)
    return folder


def mark(folder: Path, *, complete: bool) -> None:
    found = {"complete": complete, "requirements": installation._digest()}
    (folder / installation.MARK).write_text(json.dumps(found))


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


def refused(*arguments: str, code: int = 2) -> str:
    result = CliRunner().invoke(app, ["bench", "peers", *arguments])
    assert result.exit_code == code, result.output
    return result.stderr.strip().splitlines()[-1]


# The trace and the engines


def test_the_trace_has_the_means_and_the_load_that_were_asked_for() -> None:
    made = Match.make(4_000, 0.5, 1)
    trace = made.trace
    assert len(trace) == 4_000 and trace.arrival[0] == 0 and (trace.prompt >= 1).all()
    # Four standard errors of 0.8-lognormals.
    assert trace.prompt.mean() == pytest.approx(512, rel=0.06) and trace.output.mean() == pytest.approx(256, rel=0.06)
    assert np.log(trace.prompt).std() == pytest.approx(0.8, abs=0.04)
    assert made.rate == 0.5 * made.capacity
    assert 3_999 / (trace.arrival[-1] / 1e12) == pytest.approx(made.rate, rel=0.07)


def test_a_trace_that_waits_from_the_start_is_completed_at_the_capacity(drawn: Match) -> None:
    waiting = replace(drawn.trace, arrival=np.zeros_like(drawn.trace.arrival))
    assert match.capacity(drawn.trace, drawn.cluster) == match.capacity(waiting, drawn.cluster) == drawn.capacity


def test_a_trace_is_the_same_for_the_same_seed_and_another_for_another(drawn: Match) -> None:
    again, other = Match.make(REQUESTS, 0.8, 0), Match.make(REQUESTS, 0.8, 1)
    assert (again.trace.arrival == drawn.trace.arrival).all() and (again.trace.prompt == drawn.trace.prompt).all()
    assert (other.trace.prompt != drawn.trace.prompt).any()


def test_recompute_that_takes_no_time_ends_a_preempted_request_earlier() -> None:
    probe = probes.PROBES[2]
    paid, free = (
        simulate(probe.trace(), cluster, "round-robin").records
        for cluster in (probe.cluster(), match.without_recompute(probe.cluster()))
    )
    assert paid["preemptions"].sum() > 0 and free["preemptions"].sum() > 0
    # One prompt of 1,500 tokens and its generated tokens are computed anew.
    assert paid["last_token"].max() - free["last_token"].max() > 0.04925e9 * 1_500


# What Dynamo reads


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


# What Dynamo tells


def test_the_records_of_dynamo_are_read_in_the_order_of_the_trace(drawn: Match) -> None:
    rows = told(drawn.trace, readmission_count=2)
    read = dynamo.read_requests(rows[::-1], drawn.trace)
    assert read.delays.ttft == pytest.approx(0.01) and read.preemptions == 2
    many = drawn.trace.output > 1
    assert read.delays.tpot[many] == pytest.approx(0.003) and np.isnan(read.delays.tpot[~many]).all()
    assert read.prefill.tolist() == [k % 2 for k in range(REQUESTS)]
    assert read.decode.tolist() == [k % 3 for k in range(REQUESTS)]


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
    with pytest.raises(RuntimeError, match=f"Dynamo tells of {REQUESTS - 1} requests; the trace has {REQUESTS}"):
        dynamo.read_requests(told(drawn.trace)[1:], drawn.trace)


# The distances


def test_equal_delays_are_no_distance_apart() -> None:
    values = np.random.default_rng(0).lognormal(size=500)
    distance = comparison.Distance.between(values, values)
    assert (distance.ks, distance.wasserstein, distance.paired) == (0, 0, 0)
    assert all(theirs == ours for theirs, ours in distance.quantiles.values())


def test_the_distances_are_those_of_their_definitions() -> None:
    theirs, ours = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 3.0, 2.0, 6.0])
    distance = comparison.Distance.between(theirs, ours)
    # Sorted: 1 2 3 4 and 2 3 4 6. The distribution functions differ by one request of four, everywhere from 1 to 6.
    assert distance.ks == 0.25
    assert distance.wasserstein == (1 + 1 + 1 + 2) / 4
    assert distance.paired == np.median([3, 1, 1, 2])
    assert distance.means == (2.5, 3.75) and distance.quantiles["0.5"] == (2.5, 3.5)


def test_a_request_with_one_token_has_no_tpot_and_is_left_out() -> None:
    delays = Delays.of(np.array([1.0, 1.0]), np.array([0.0, 6.0]), np.array([1, 4]))
    assert np.isnan(delays.tpot[0]) and delays.tpot[1] == 2
    assert comparison.Distance.between(delays.tpot, delays.tpot).means == (2, 2)


# The speeds


def test_speeds_are_requests_per_cpu_second_and_ratios_are_taken_round_by_round() -> None:
    def times(start: float, replay: float, simulation: float, process: float) -> Times:
        return Times(
            start_s=start, replay_s=replay, simulation_s=simulation, process_s=process, completed=1_000, versions={}
        )

    rounds = [
        (times(0.1, 1.0, 0.5, 2.0), times(0.5, 0.1, 0.01, 1.0)),
        (times(0.3, 2.0, 1.0, 4.0), times(0.7, 0.1, 0.01, 1.0)),
    ]
    found = {result.name: result for result in comparison.speeds(rounds, 1_000)}
    assert found["peers/dynamo/simulation"].value == pytest.approx(1_500)
    assert found["peers/disaggroute/simulation"].value == pytest.approx(100_000)
    ratio = found["peers/ratio/process"]
    assert (ratio.min, ratio.value, ratio.max) == pytest.approx((2, 3, 4)) and ratio.repeats == 2
    assert found["peers/dynamo/start-up"].value == pytest.approx(0.2)
    assert found["peers/disaggroute/start-up"].value == pytest.approx(0.6)


def test_our_process_measures_itself_and_serves_every_request(drawn: Match, tmp_path: Path) -> None:
    file = traces.write(drawn.trace, tmp_path / "trace.csv")
    times = processes.run_ours(Task(str(file), str(file), str(tmp_path / "result.json"), {}))
    assert times.completed == REQUESTS
    assert 0 < times.simulation_s < times.replay_s
    assert times.start_s + times.replay_s <= times.process_s


def test_a_process_that_fails_is_reported_by_its_last_words(tmp_path: Path) -> None:
    missing = Task("nowhere.csv", "nowhere.csv", str(tmp_path / "result.json"), {})
    with pytest.raises(RuntimeError, match="disaggroute failed: .*nowhere.csv"):
        processes.run_ours(missing)


def test_a_python_without_dynamo_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Dynamo failed: ModuleNotFoundError: No module named 'dynamo'"):
        processes.run_dynamo(Path(sys.executable), Task("", "", str(tmp_path / "result.json"), {}))


# The commands


def test_a_comparison_writes_its_numbers_and_a_picture(environment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "peers", "run", str(environment), "--requests", str(REQUESTS), "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for words in ("simulation alone", "file to summary", "whole process", "start-up", "ai-dynamo 1.2.3", "TPOT, Dynamo"):
        assert words in result.stdout
    assert "preemptions: 1 (Dynamo)" in result.stdout
    report = json.loads((out / "peers.json").read_text())
    assert report["requests"] == REQUESTS and report["rate"] == pytest.approx(0.8 * report["capacity"])
    assert {entry["name"] for entry in report["results"]} >= {"peers/ratio/process", "peers/dynamo/start-up"}
    assert report["comparisons"].keys() == {"own", "same", "free"}
    assert report["comparisons"]["same"]["ttft"]["means"][0] == pytest.approx(0.005)
    rows = list(csv.DictReader((out / "peers.csv").open()))
    half = next(row for row in rows if (row["variant"], row["delay"], row["measure"]) == ("same", "tpot", "q0.5"))
    assert float(half["dynamo"]) == pytest.approx(0.002) and float(half["disaggroute"]) > 0.013
    assert (out / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_json_stands_alone_on_the_standard_output(environment: Path, tmp_path: Path) -> None:
    arguments = ["bench", "peers", "run", str(environment), "--requests", str(REQUESTS), "--repeats", "1", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert json.loads(result.stdout)["seed"] == 0 and "round 1 of 1" in result.stderr


def test_a_folder_without_dynamo_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    sentence = f"disaggroute: {folder}: Dynamo is not installed there; `disaggroute bench peers setup {folder}` installs it"
    assert refused("run", str(folder)) == sentence
    assert refused("probe", str(folder)) == sentence


def test_an_installation_that_is_incomplete_damaged_or_of_another_version_is_refused(environment: Path) -> None:
    sentence = (
        f"disaggroute: {environment}: Dynamo is there incompletely or in another version; "
        f"`disaggroute bench peers setup {environment}` makes it anew"
    )
    mark(environment, complete=False)
    assert refused("run", str(environment)) == sentence
    (environment / installation.MARK).write_text('{"complete": true, "requirements": "older"}')
    assert refused("run", str(environment)) == sentence
    (environment / installation.MARK).write_text("{")
    assert refused("run", str(environment)) == sentence


def test_setup_leaves_a_folder_alone_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert refused("setup", str(tmp_path)).endswith("holds something other than Dynamo; name a folder that is new or empty")
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_setup_does_nothing_where_dynamo_is_installed(environment: Path) -> None:
    before = sorted(environment.rglob("*"))
    result = CliRunner().invoke(app, ["bench", "peers", "setup", str(environment)])
    assert result.exit_code == 0 and str(environment / "bin" / "python") in result.stdout
    assert sorted(environment.rglob("*")) == before


def test_an_installation_that_fails_is_told_in_a_sentence_and_made_anew_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"{tmp_path}/no-such-package.whl\n")
    monkeypatch.setattr(installation, "REQUIREMENTS", wanted)
    folder = tmp_path / "environment"
    assert "Dynamo could not be installed (" in refused("setup", str(folder), code=1)
    assert "incompletely" in refused("run", str(folder))
    wanted.write_text("")
    monkeypatch.setattr(installation, "CHECK", "")
    result = CliRunner().invoke(app, ["bench", "peers", "setup", str(folder)])
    assert result.exit_code == 0, result.output
    assert installation.peer_python(folder) == folder / "bin" / "python"


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--requests", "99", "requests is 99; it must be at least 100"),
        ("--load", "0", "load is 0; it must be above 0 and at most 1"),
        ("--load", "1.5", "load is 1.5; it must be above 0 and at most 1"),
        ("--repeats", "0", "repeats is 0; it must be at least 1"),
        ("--seed", "-1", "seed is -1"),
    ],
)
def test_a_number_out_of_range_is_refused(environment: Path, option: str, value: str, sentence: str) -> None:
    assert sentence in refused("run", str(environment), option, value)


def test_requests_that_get_lost_are_reported(environment: Path) -> None:
    stand_in = environment / "packages" / "dynamo" / "replay.py"
    stand_in.write_text(STAND_IN.replace('"completed_requests": len(rows)', '"completed_requests": 1'))
    said = refused("run", str(environment), "--requests", str(REQUESTS), "--repeats", "1", code=1)
    assert said == f"disaggroute: Dynamo completed 1 of {REQUESTS} requests"


@pytest.mark.parametrize("probe", probes.PROBES, ids=["transfers", "offers", "recompute"])
def test_the_requests_of_a_probe_can_be_told_apart_and_are_served(probe: probes.Probe) -> None:
    assert len(set(probe.requests)) == len(probe.requests)
    records = simulate(probe.trace(), probe.cluster(), "round-robin").records
    assert (records["last_token"] > 0).all()


def test_the_pinned_requirements_are_exact_versions() -> None:
    lines = [line for line in installation.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 3 and all(line.count("==") == 1 for line in lines)
