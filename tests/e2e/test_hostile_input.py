"""Input that tries to break the command line: each is refused in one sentence with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from pickle import UnpicklingError

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.training import evaluation

OWN = "arrival_s,prompt_tokens,output_tokens\n"


def refusal(*arguments: str) -> str:
    """The one sentence with which a command refuses bad input."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 2, f"{result.output}\n{result.exception!r}"
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--warmup", "1e300"], "warmup_s is 1e+300; it must be less than or equal to 8640000"),
        (["--duration", "1e9"], "duration_s is 1000000000.0; it must be less than or equal to 8640000"),
        (["--rate", "1e300"], "requests; a trace holds at most 100,000,000"),
        (["--first-seed", "99999999999999999999"], "it must be at most 4294967295"),
        (["--topology", ""], "topology is ''; it must read like 2P4D"),
        (["--topology", "9999P4D"], "prefill.0.count is 9999; it must be less than or equal to 4096"),
        (["--profile", ""], "unknown profile ''"),
        (["--tight-share", "0.5"], "tight_share is 0.5, but chat is a workload, which has its own"),
        (["--routers", "0"], "routers is 0; it must be greater than or equal to 1"),
        (["--routers", "-3"], "routers is -3; it must be greater than or equal to 1"),
        (["--routers", "1.5"], "valid integer"),
        (["--routers", "9"], "routers is 9; it must be less than or equal to 8"),
        (["--dealing", "hash"], "dealing is 'hash'; it must be 'round-robin' or 'random'"),
        (["--constants-scale", "1e300"], "constants_scale is 1e+300; it must be less than or equal to"),
        (["--predictor", "constant(99999999999)"], "constant: tokens is 99999999999; it must be a whole number of"),
        (["--predictor", "noisy(1e300)"], "noisy: error is 1e+300; it must be at most 10"),
        (["--policies", f"power-of-two(d={'9' * 20})"], "unknown field 'd'"),
        (["--seeds", "4000000000"], "seeds is 4000000000; it must be at most 100000"),
        (["--claim-log", "a.log"], "claim_log is a.log, but without --claim nothing is logged"),
    ],
)
def test_an_absurd_option_is_refused(options: list[str], sentence: str, tmp_path: Path) -> None:
    rate = [] if "--rate" in options else ["--rate", "5"]
    assert sentence in refusal("evaluate", "chat", "--out", str(tmp_path / "r"), *rate, *options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: c\nname: d\n", "line 2: name stands twice; give it once"),
        ("prefill: {count: 1,\n count: 2, profile: a40}\n", "line 2: count stands twice"),
        ("1: 2\nname: c\n", "1 is the name of a field; it must be text"),
        ("prefill: {count: 1, profile: a40-qwen2.5-3b, overrides: {lease_s: .inf}}\n", "lease_s is inf; it must be a"),
        ("prefill: {count: 1, profile: a40-qwen2.5-3b, overrides: {latency_ms: 1.0e+300}}\n", "latency_ms is 1e+300"),
        ("poll_interval_s: .nan\n", "poll_interval_s is nan; it must be a finite number"),
        ("pair_latency_ms: [[.inf]]\n", "pair_latency_ms.0.0 is inf; it must be a finite number"),
        ("a: &a [x]\nname: !!python/object/apply:os.getcwd []\n", "is not valid YAML (could not determine a cons"),
    ],
)
def test_a_hostile_cluster_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert sentence in refusal("evaluate", "chat", "--rate", "5", "--cluster", str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OWN + "1e300,1,1\n", "line 2: arrival_s is '1e300'; a trace must end within 100 days"),
        (
            "arrival_ps,prompt_tokens,output_tokens\n9999999999999999999999,5,5\n",
            "line 2: arrival_ps is '9999999999999999999999'; it must be a whole number of picoseconds",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_time_beyond_int64_is_refused_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert sentence in refusal("trace", "inspect", str(path))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.csv")
    assert "t.csv: is no regular file" in refusal("trace", "inspect", str(tmp_path / "t.csv"))


@pytest.mark.parametrize("words", [("profile", "import"), ("profile", "show"), ("explain",), ("evaluate", "chat")])
def test_a_pipe_is_waited_for_by_no_command(words: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.yaml")
    path = str(tmp_path / "p.yaml")
    given = {"explain": [f"marginal-cost@{path}"], "evaluate": ["--cluster", path, "--rate", "5"]}.get(words[0], [path])
    assert "p.yaml: is no regular file" in refusal(*words, *given)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"aiconfigurator_fits": [', "\x00"])
def test_a_file_of_fits_that_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "fits.json").write_text(text)
    assert "fits.json: is not valid JSON (" in refusal("profile", "import", str(tmp_path / "fits.json"))


def test_a_closed_standard_output_is_no_error() -> None:
    command = f"exec {sys.executable} -m disaggroute list policies >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_costs_no_file(tmp_path: Path) -> None:
    words = ["evaluate", "chat", "--topology", "1P2D", "--rate", "10", "--duration", "10", "--warmup", "2"]
    words += ["--seeds", "1", "--workers", "1", "--policies", "round-robin", "--out", str(tmp_path / "r")]
    command = [sys.executable, "-m", "disaggroute", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read() and process.wait() == 1
    assert (tmp_path / "r" / "report.html").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_standard_output_that_is_full_is_told() -> None:
    command = f"exec {sys.executable} -m disaggroute list policies > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    sentence = "disaggroute: the standard output cannot be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_a_standard_output_that_knows_ascii_only_is_no_error() -> None:
    command = [sys.executable, "-m", "disaggroute", "profile", "show", "a40-qwen2.5-3b"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a40-qwen2.5-3b" in done.stdout


@pytest.mark.parametrize("error", [UnpicklingError("pickle data was truncated"), EOFError()])
def test_damaged_compiled_code_is_told_with_its_folder(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(evaluation, "evaluate", fail)
    result = CliRunner().invoke(app, ["evaluate", "chat", "--rate", "5", "--seeds", "1"])
    assert result.exit_code == 1
    assert "is damaged; delete that folder" in result.stderr
