"""`disaggroute experiment paper`: the study in a few short traces, a file of one's own, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app

OWN = {
    "name": "own",
    "seeds": 4,
    "scenario": {"workload": "chat", "topology": "1P2D", "rate": 12, "duration_s": 10, "warmup_s": 2},
    "conditions": [{"name": "usual"}],
    "figures": [
        {"name": "one", "title": "One", "conditions": ["usual"], "series": ["least-loaded", "round-robin"]},
    ],
    "findings": [
        {
            "name": "alike",
            "claim": "They are alike",
            "figure": "one",
            "condition": "usual",
            "comparisons": [{"of": "least-loaded", "against": "round-robin", "within": 50}],
        }
    ],
}


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of an experiment that ends with this exit code."""
    result = CliRunner().invoke(app, ["experiment", "paper", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(OWN))
    return str(path)


def test_the_whole_study_runs_in_a_few_short_traces(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--quick", "--seeds", "2", "--duration", "20", "--workers", "1", "--out", str(out))
    said, _ = run(*words)
    for claim in ("highest mean goodput", "marginal cost loses to the heuristic", "reaches what round robin needs"):
        assert claim in said
    names = {path.name for path in out.iterdir()}
    assert {"findings.csv", "numbers.csv", "report.html", "rates.json", "mixed-bursty.png", "frontier.png"} <= names
    page = (out / "report.html").read_text()
    assert "disaggroute experiment paper --seeds 2 --duration 20 --quick" in page
    assert "disaggroute evaluate chat --topology 2P4D" in page
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/runs/*/*.json")}
    again, _ = run(*words, "--findings", "frontier")
    assert "reaches what round robin needs" in again and "highest mean" not in again
    assert {path: path.stat().st_mtime_ns for path in before} == before and not (out / "chat.png").exists()


def test_an_experiment_of_one_s_own_is_a_file(own: str, tmp_path: Path) -> None:
    said, _ = run("--file", own, "--workers", "1", "--out", str(tmp_path / "out"))
    assert "They are alike" in said and "1 findings: " in said
    assert f"disaggroute experiment paper --file {own}" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--findings", "frontir"), "paper: unknown finding 'frontir'; nearest: frontier"),
        (("--file", "papr"), "unknown experiment 'papr'; nearest: paper"),
        (("--file", "nowhere.yaml"), "nowhere.yaml"),
        (("--workers", "0"), "workers is 0; it must be at least 1"),
        (("--seeds", "0"), "seeds is 0; it must be at least 1"),
        (("--duration", "0"), "duration_s is 0"),
        (("--first-seed", "30000"), "seed 30000 is held out for claims"),
        (("--claim", "--seeds", "5"), "condition study: seeds is 5; a claim needs at least 50 held-out seeds"),
        (("--claim-log", "x"), "claim_log is x, but without --claim nothing is logged; give both or neither"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    said, err = run(*arguments, "--out", str(tmp_path / "out"), code=2)
    assert said == "" and words in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "out").exists()
