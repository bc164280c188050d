"""`disaggroute check-scenario`: its table, its verdict and its exit code."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.training import scenario_check

MAIN = ("mixed-bursty", "--cluster", "2p4d-a40-30k")
QUICK = ("--seeds", "4", "--duration", "60", "--warmup", "10", "--workers", "1")


def run(*arguments: str, code: int) -> tuple[str, str]:
    """Standard output and standard error of a check that ends with this exit code."""
    result = CliRunner().invoke(app, ["check-scenario", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def test_a_scenario_far_from_saturation_fails_and_its_table_is_written_all_the_same(tmp_path: Path) -> None:
    also = ("--also", "least-loaded,marginal-cost(w_q=0.1)")
    out, _ = run(*MAIN, *QUICK, *also, "--rate", "3", "--out", str(tmp_path / "r"), code=1)
    assert "3 requests/s, 60 s measured after 10 s" in out and "seeds 20000 to 20003" in out
    assert out.count("FAIL") == 3 and "PASS" not in out
    with open(tmp_path / "r" / "scenario-check.csv", newline="") as file:
        labels = [row["policy"] for row in csv.DictReader(file)]
    assert labels == [*scenario_check.JUDGED, "least-loaded", "marginal-cost(w_q=0.1)"]
    assert all(label in out for label in labels)


def test_the_main_scenario_passes_on_a_few_seeds_already(tmp_path: Path) -> None:
    few = ("--seeds", "10", "--duration", "900", "--rate", "11.6", "--workers", "1", "--out", str(tmp_path / "r"))
    out, _ = run(*MAIN, *few, code=0)
    assert out.count("PASS") == 3 and "FAIL" not in out


def test_the_rate_is_the_stored_one(tmp_path: Path) -> None:
    out, err = run(*MAIN, *QUICK, "--out", str(tmp_path / "r"), code=1)
    assert "11.65 requests/s" in out and "of the ceiling at" not in err


def test_a_rate_that_is_not_stored_is_searched_for_on_the_seeds_of_the_check(tmp_path: Path) -> None:
    quick = ("--seeds", "2", "--first-seed", "20010", "--duration", "10", "--warmup", "2", "--workers", "1")
    out, err = run("chat", "--topology", "1P2D", *quick, "--out", str(tmp_path / "r"), code=1)
    assert "round-robin reaches 0.8" in err and "seeds 20010 to 20011" in out
    assert out.count("without an interval") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mixed-bursty", "--topology", "4M"), "the cluster has 4 mixed instances; a check of both decisions"),
        ((*MAIN, "--first-seed", "30000"), "seeds 30000 to 30049 leave the saturation range; it is 20000 to 20099"),
        ((*MAIN, "--also", "round-robin"), "policies names round-robin twice"),
        (("mixed-busty",), "unknown workload 'mixed-busty'; nearest: mixed-bursty"),
        ((*MAIN, "--duration", "0"), "duration_s is 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    out, err = run(*arguments, code=2)
    assert out == "" and len(err.splitlines()) == 1 and words in err


def test_a_trace_file_is_not_a_scenario_to_choose(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,5\n2,30,5\n")
    _, err = run(str(path), code=2)
    assert "mine.csv is a trace file; a scenario is checked on many traces of a workload family" in err
