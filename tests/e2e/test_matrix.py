"""`disaggroute evaluate --matrix`: its tables, its files and its refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app

ASKS_ELSEWHERE = re.compile(r"https?://|@import|url\(|<script|<link|<iframe", re.IGNORECASE)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A matrix of two small conditions and one whose trace is not there."""
    path = tmp_path / "small.yaml"
    matrix = {
        "name": "small",
        "reference": "least-loaded",
        "policies": ["least-loaded", "round-robin"],
        "seeds": 4,
        "scenario": {"workload": "chat", "topology": "1P2D", "rate": 12, "duration_s": 10, "warmup_s": 2},
        "conditions": [
            {"name": "usual"},
            {"name": "fast", "rate": 20},
            {"name": "absent", "workload": "not-here.csv.gz"},
        ],
    }
    path.write_text(yaml.safe_dump(matrix))
    return str(path)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of an evaluation that ends with this exit code."""
    words = ["evaluate", *arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "DISAGGROUTE_DATA": ""})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_conditions_are_compared_and_what_is_absent_is_said(file: str, tmp_path: Path) -> None:
    out, err = run("--matrix", file, "--workers", "1", "--out", str(tmp_path / "out"))
    assert "condition absent is skipped: the trace not-here.csv.gz is not there" in err
    for words in ("small: 2 conditions, reference least-loaded", "usual", "fast", "round-robin", "95 %"):
        assert words in out
    for name in ("matrix.csv", "matrix.png", "matrix.html", "usual/summary.csv", "fast/summary.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    page = (tmp_path / "out" / "matrix.html").read_text()
    assert not ASKS_ELSEWHERE.search(page) and "disaggroute evaluate --matrix" in page
    again, _ = run("--matrix", file, "--workers", "1", "--out", str(tmp_path / "out"))
    assert again == out


def test_conditions_and_policies_may_be_chosen_on_the_command_line(file: str, tmp_path: Path) -> None:
    more = ("--conditions", "fast", "--policies", "marginal-cost(w_q=0.1),least-loaded", "--seeds", "1")
    out, _ = run("--matrix", file, *more, "--duration", "5", "--workers", "1", "--out", str(tmp_path / "out"))
    assert "small: 1 condition, reference least-loaded" in out and "usual" not in out
    assert "marginal-cost(w_q=0.1)" in out and "round-robin" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "5"), "rate is 5.0, but the file of --matrix says what each condition is; leave it out"),
        (("chat",), "workload is chat, but the file of --matrix says what each condition is; leave it out"),
        (("--conditions", "slow"), "small: unknown condition 'slow'"),
        (("--policies", "marginal-cots"), "condition usual: unknown policy 'marginal-cots'; nearest: marginal-cost"),
        (("--first-seed", "30000"), "seed 30000 is held out for claims"),
        (("--claim",), "condition usual: seeds is 4; a claim needs at least 50 held-out seeds"),
        (("--data", "nowhere"), "data is nowhere; it must be a folder of trace files"),
        (("--workers", "0"), "workers is 0; it must be at least 1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(file: str, arguments: tuple[str, ...], words: str) -> None:
    out, err = run("--matrix", file, *arguments, code=2)
    assert out == "" and words in err.splitlines()[-1] and "Traceback" not in err


def test_what_belongs_to_a_matrix_is_refused_without_one(tmp_path: Path) -> None:
    for option in ("--conditions", "--data"):
        _, err = run(option, "x", code=2)
        assert err == f"disaggroute: {option[2:]} is x, but it belongs to --matrix; give that too, or leave it out\n"
    _, err = run("--matrix", "generalization", code=2)
    assert "unknown experiment 'generalization'; nearest: generalisation" in err
