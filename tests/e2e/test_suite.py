"""`disaggroute experiment suite`: its table, its files and its refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.training.suite import best_known

SCENARIO: dict[str, Any] = {
    "name": "tiny",
    "version": 1,
    "notes": "A few seconds.",
    "workload": "chat",
    "topology": "1P2D",
    "rate": 60,
    "duration_s": 10,
    "warmup_s": 2,
    "seeds": {"validation": {"first": 10_000, "count": 4}},
}

MODULE = '''
from disaggroute import policies


class Last(policies.Policy):
    """The last instances."""

    name = "last-ones"

    def route(self, admission):
        return len(admission.prefill) - 1, len(admission.decode) - 1
'''


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return str(path)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a run of the suite that ends with this exit code."""
    words = ["experiment", "suite", *arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "DISAGGROUTE_DATA": ""})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_policies_are_scored_and_the_best_becomes_known(scenario: str, tmp_path: Path) -> None:
    where = ("--scenarios", scenario, "--workers", "1", "--out", str(tmp_path / "out"))
    best = str(tmp_path / "best.yaml")
    policies = ("--policy", "least-loaded", "--policy", "round-robin", "--policy", "marginal-cost (tuned)")
    out, err = run(*where, *policies, "--best-known", best, "--update-best", "--docs", str(tmp_path))
    for words in ("Leaderboard", "least-loaded", "marginal-cost (tuned)", "1 of 1", "interquartile mean"):
        assert words in out
    assert "best known: " in err and "best known of this run" not in out
    known = best_known.read(Path(best)).scenarios["tiny"]
    assert known.version == 1 and known.command.startswith("disaggroute experiment suite --policy least-loaded")
    for name in ("leaderboard.csv", "suite.csv", "suite.html", "leaderboard.png", "tiny/summary.csv", "suite.json"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert "disaggroute experiment suite" in (tmp_path / "leaderboard.md").read_text()
    again, _ = run(*where, *policies, "--best-known", best, "--no-figures")
    assert again.split("Score:")[0] == out.split("Score:")[0]
    assert not (tmp_path / "out" / "suite.html").exists()


def test_a_policy_of_one_s_own_is_scored_in_all_worker_processes(scenario: str, tmp_path: Path) -> None:
    (tmp_path / "a_module_of_mine.py").write_text(MODULE)
    command = [sys.executable, "-m", "disaggroute", "experiment", "suite", "--policy", "a_module_of_mine:Last"]
    command += ["--scenarios", scenario, "--workers", "2", "--out", "out", "--no-figures"]
    environment = {name: value for name, value in os.environ.items() if name != "DISAGGROUTE_POLICIES"}
    environment["PYTHONPATH"] = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "last-ones" in done.stdout and (tmp_path / "out" / "leaderboard.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scenarios", "failure"), "unknown scenario of the suite 'failure'; nearest: failures"),
        (("--policy", "marginal-cots"), "unknown policy 'marginal-cots'; nearest: marginal-cost"),
        (("--policy", "no_such_module:Mine"), "policy no_such_module:Mine cannot be loaded"),
        (("--seeds", "0"), "seeds is 0; it must be at least 1"),
        (("--claim", "--seeds", "3"), "seeds is 3; a claim needs at least 50 held-out seeds"),
        (("--data", "nowhere"), "data is nowhere; it must be a folder of trace files"),
        (("--workers", "0"), "workers is 0; it must be at least 1"),
        (("--executor", "rya"), "unknown executor 'rya'; nearest: ray"),
        (("--executor", "ray", "--ray-address", "127.0.0.1:1"), "ray_address is 127.0.0.1:1, where nothing answers ("),
        (("--claim-log", "x"), "claim_log is x, but without --claim nothing is logged; give both or neither"),
        (("--update-best", "--seeds", "1"), "update_best rests on the validation seeds and windows of the scenarios"),
        (("--scenarios", " , "), "scenarios is empty; at least one scenario is needed"),
        (("--docs", "nowhere"), "docs is nowhere; it must be the folder of the documentation"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    out, err = run(*arguments, code=2)
    assert out == "" and words in err.splitlines()[-1] and "Traceback" not in err


def test_a_folder_of_another_version_is_refused(scenario: str, tmp_path: Path) -> None:
    where = ("--scenarios", scenario, "--policy", "least-loaded", "--workers", "1", "--out", str(tmp_path / "out"))
    run(*where, "--seeds", "1", "--no-figures")
    Path(scenario).write_text(yaml.safe_dump(SCENARIO | {"version": 2}))
    _, err = run(*where, code=2)
    assert "holds results of version 1 of scenario tiny, and this is version 2; name another folder" in err


@pytest.mark.parametrize(("blow", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 1)])
def test_a_run_that_is_cut_short_goes_on_to_the_same_bytes(
    scenario: str, tmp_path: Path, blow: signal.Signals, code: int
) -> None:
    Path(scenario).write_text(yaml.safe_dump(SCENARIO | {"duration_s": 200}))
    words = ["--scenarios", scenario, "--workers", "1", "--no-figures"]
    for policy in ("least-loaded", "power-of-two", "marginal-cost", "size-interval"):
        words += ["--policy", policy]
    out = tmp_path / "cut"
    process = subprocess.Popen(
        [sys.executable, "-m", "disaggroute", "experiment", "suite", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while len(list(out.glob("*/runs/*/*.json"))) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)
    process.send_signal(blow)
    _, err = process.communicate()
    assert process.returncode == code and len(list(out.glob("*/runs/*/*.json"))) < 24, err
    if blow is signal.SIGINT:
        assert err.endswith("disaggroute: interrupted; the same command goes on from the finished runs\n")
    run(*words, "--out", str(out))
    run(*words, "--out", str(tmp_path / "whole"))
    for name in ("leaderboard.csv", "suite.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_scenarios_are_listed() -> None:
    result = CliRunner().invoke(app, ["list", "suite"])
    assert result.exit_code == 0 and "failures" in result.stdout.split()
    assert "best-known" not in result.stdout
