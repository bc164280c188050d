"""`disaggroute tune` and the files it leaves: what it prints and refuses, and what a kill leaves."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.policies import parse, policy_file

SCENARIO = ["chat", "--topology", "1P2D", "--rate", "60", "--duration", "20", "--warmup", "5"]
EFFORT = ["--evaluations", "6", "--tuning-seeds", "3", "--validation-seeds", "4", "--validation-duration", "20"]
POLICY = "length-threshold(threshold=8000)"


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this exit code."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A results folder, and what was printed."""
    folder = tmp_path_factory.mktemp("tune") / "a folder, with (brackets)"
    out, _ = run("tune", POLICY, *SCENARIO, *EFFORT, "--workers", "1", "--out", str(folder))
    return folder, out


def test_it_shows_what_was_gained_and_where_the_files_lie(tuned: tuple[Path, str]) -> None:
    folder, out = tuned
    for words in ("default", "tuned", "points to", "threshold", "8000", "Chosen: restart", "seeds 10000 to 10003"):
        assert words in out
    for name in ("tuned.yaml", "evaluations.csv", "tuning.png"):
        assert (folder / name).stat().st_size > 0 and str(folder / name) in out


def test_the_command_in_the_file_makes_the_file_again(tuned: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = tuned
    command = yaml.safe_load((folder / "tuned.yaml").read_text())["provenance"]["command"]
    words = shlex.split(command)
    assert words[0] == "disaggroute"
    run(*words[1:], "--workers", "1", "--out", str(tmp_path / "r"))
    assert content(tmp_path / "r") == content(folder)


def test_evaluate_takes_the_file_among_other_policies_and_resumes(tuned: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = tuned
    label = f'length-threshold@"{folder / "tuned.yaml"}"'
    options = [*SCENARIO, "--seeds", "2", "--workers", "1", "--out", str(tmp_path / "r")]
    first, _ = run("evaluate", *options, "--policies", f"round-robin,{label}", code=0)
    assert "length-threshold@" in first
    before = content(tmp_path / "r")
    assert run("evaluate", *options, "--policies", f"round-robin,{label}")[0] == first
    assert content(tmp_path / "r") == before
    assert len(list((tmp_path / "r" / "runs").glob("length-threshold-*/*.json"))) == 2


def test_evaluate_refuses_a_file_beside_its_own_parameters(tuned: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = tuned
    label = f'length-threshold@"{folder / "tuned.yaml"}"'
    twin = f"length-threshold(threshold={parse(label).params['threshold']})"
    _, err = run("evaluate", *SCENARIO, "--policies", f"{label},{twin}", "--out", str(tmp_path / "r"), code=2)
    assert "policies names length-threshold(threshold=" in err and "twice" in err


def test_explain_shows_the_parameters_of_a_file(tuned: tuple[Path, str]) -> None:
    folder, _ = tuned
    label = f'length-threshold@"{folder / "tuned.yaml"}"'
    out, _ = run("explain", label)
    assert f"  threshold = {parse(label).params['threshold']}\n" in out


def test_explain_says_what_can_be_tuned() -> None:
    assert "`disaggroute tune` chooses w_s, w_q, rho, sigma_tight." in run("explain", "marginal-cost")[0]
    assert "disaggroute tune" not in run("explain", "round-robin")[0]


def test_shipped_files_are_listed_with_the_policies() -> None:
    names = run("list", "policies")[0].split()
    at = names.index("marginal-cost")
    shipped = policy_file.shipped("marginal-cost")
    assert {"mixed-bursty", "mixed-bursty-a40"} <= set(shipped)
    assert names[at + 1 : at + 1 + len(shipped)] == [f"marginal-cost@{file}" for file in shipped]


def test_a_tuning_may_start_at_a_file(tuned: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = tuned
    label = f'length-threshold@"{folder / "tuned.yaml"}"'
    out, _ = run("tune", label, *SCENARIO, *EFFORT, "--workers", "1", "--out", str(tmp_path / "r"))
    assert f"{parse(label).params['threshold']:g}" in out
    assert parse(f"length-threshold@{tmp_path / 'r' / 'tuned.yaml'}").name == "length-threshold"


def test_one_half_of_a_trace_file_is_tuned_on_and_the_other_validates(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.2},{50 + k % 90},{5 + k % 40}\n" for k in range(500))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    out, err = run(
        *("tune", "marginal-cost", str(path), "--topology", "1P2D", "--warmup", "20", "--evaluations", "8"),
        *("--workers", "1", "--out", str(tmp_path / "r")),
    )
    assert "one trace" in out and "39.9 s measured after 59.9 s" in out and "filtered share 0.00%" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["round-robin"], "policy is round-robin, which has nothing to tune; these have: length-threshold, "),
        (["marginal-cots"], "unknown policy 'marginal-cots'; nearest: marginal-cost"),
        (["marginal-cost@none.yaml"], "there is no policy file none.yaml; shipped for marginal-cost: "),
        (["marginal-cost", "chet"], "unknown workload 'chet'; nearest: chat"),
        (["marginal-cost", "--first-seed", "30000"], "seed 30000 is held out for claims (30000 to 30099); tune"),
        (["marginal-cost", "--validation-seeds", "101"], "leave the validation range; it is 10000 to 10099"),
        (["marginal-cost", "--restarts", "2"], "restarts is 2; it must be at least 3"),
        (["marginal-cost", "--evaluations", "3"], "evaluations is 3; it must be at least 8, one generation"),
        (["marginal-cost", "--workers", "0"], "workers is 0; it must be at least 1"),
        (["marginal-cost", "--rate", "-1"], "rate is -1.0; it must be greater than 0"),
        (["marginal-cost", "--duration", "0"], "duration_s is 0.0; it must be greater than 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    rate = [] if "--rate" in arguments else ["--rate", "10"]
    out, err = run("tune", *arguments, *rate, "--out", str(tmp_path / "r"), code=2)
    assert out == "" and len(err.splitlines()) == 1 and words in err
    assert not (tmp_path / "r").exists()


# --- kill and resume


def command(out: Path, workers: int = 1) -> list[str]:
    effort = ["--evaluations", "60", "--tuning-seeds", "4", "--validation-seeds", "4", "--validation-duration", "40"]
    words = ["disaggroute", "tune", "marginal-cost", *SCENARIO, *effort, "--workers", str(workers), "--out", str(out)]
    return [sys.executable, "-m", *words]


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(out, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )


def heed_interrupts() -> None:
    # A shell lets what it runs in the background ignore interrupts, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(process: subprocess.Popen[str], out: Path, pattern: str, count: int) -> None:
    while len(list(out.glob(pattern))) < count:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Bytes of a tuning that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "r"
    subprocess.run(command(out), check=True, capture_output=True)
    return content(out)


@pytest.mark.parametrize(("pattern", "count"), [("generations/*.json", 2), ("validation/runs/*/*.json", 3)])
def test_a_killed_tuning_resumes_to_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes], pattern: str, count: int
) -> None:
    out = tmp_path / "r"
    process = start(out)
    wait_for(process, out, pattern, count)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "tuned.yaml").exists(), "the tuning had ended before it was killed"
    subprocess.run(command(out), check=True, capture_output=True)
    assert content(out) == whole


def test_an_interrupted_tuning_says_how_to_go_on_and_does(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out = tmp_path / "r"
    process = start(out)
    wait_for(process, out, "generations/*.json", 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1 and "Traceback" not in err
    assert "interrupted; the same command goes on from the finished generations" in err
    subprocess.run(command(out), check=True, capture_output=True)
    assert content(out) == whole


def test_a_search_without_the_library_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "cma.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "disaggroute", "tune", "marginal-cost", "--rate", "10"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("disaggroute: the library cma is not installed")
    assert len(done.stderr.splitlines()) == 1
