"""`disaggroute bench peers` without Dynamo: a stand-in answers in the form that Dynamo was seen to answer in."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.benchmarks.peers import installation

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


def refused(*arguments: str, code: int = 2) -> str:
    result = CliRunner().invoke(app, ["bench", "peers", *arguments])
    assert result.exit_code == code, result.output
    return result.stderr.strip().splitlines()[-1]


def test_a_comparison_writes_its_numbers_and_a_picture(environment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "peers", "run", str(environment), "--requests", str(REQUESTS), "--repeats", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    phases = ("simulation alone", "file to summary", "whole process", "start-up")
    for words in (*phases, "ai-dynamo 1.2.3", "TPOT, Dynamo"):
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
    sentence = f"{folder}: Dynamo is not installed there; `disaggroute bench peers setup {folder}` installs it"
    assert refused("run", str(folder)) == refused("probe", str(folder)) == f"disaggroute: {sentence}"


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
    sentence = f"{tmp_path} holds something other than Dynamo; name a folder that is new or empty"
    assert refused("setup", str(tmp_path)) == f"disaggroute: {sentence}"
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


def test_the_pinned_requirements_are_exact_versions() -> None:
    lines = [line for line in installation.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 3 and all(line.count("==") == 1 for line in lines)
