"""The report in its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.report.figures import FIGURES
from disaggroute.training.report.writing import PAGE, remove_report, write_report
from disaggroute.training.results import read_results

KILLED = """
name: killed
prefill: {count: 1, profile: a40-qwen2.5-3b}
decode: {count: 1, profile: a40-qwen2.5-3b}
events: [{at_s: 0.1, instance: decode/0, action: kill}]
"""


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_figures_and_page_are_written_and_are_the_same_every_time(copy: Path) -> None:
    written = write_report(read_results(copy))
    assert [path.name for path in written] == [*(f"{kind.name}.png" for kind in FIGURES), PAGE]
    once = {path.name: path.read_bytes() for path in written}
    write_report(read_results(copy))
    assert {path.name: path.read_bytes() for path in written} == once
    for name, content in once.items():
        assert content.startswith(b"<!DOCTYPE html>" if name == PAGE else b"\x89PNG")


def test_figures_that_can_no_longer_be_made_are_removed(copy: Path) -> None:
    write_report(read_results(copy))
    shutil.rmtree(copy / "records")
    names = {path.name for path in write_report(read_results(copy))}
    assert names == {"goodput.png", "slo-scale.png", "groups.png", PAGE}
    assert {path.name for path in copy.glob("*.png")} == names - {PAGE}


def test_a_report_can_be_taken_away(copy: Path) -> None:
    before = {path.name for path in copy.iterdir()}
    write_report(read_results(copy))
    remove_report(copy)
    assert {path.name for path in copy.iterdir()} == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ["all fail", "no miss", "tiny", "mixed", "trace"])
def test_a_report_of_anything_can_be_written(case: str, tmp_path: Path) -> None:
    values: dict[str, object] = {"workload": "chat", "topology": "1P1D", "rate": 5, "duration_s": 10, "warmup_s": 1}
    policies = ("round-robin", "least-loaded")
    if case == "all fail":
        (tmp_path / "killed.yaml").write_text(KILLED)
        values |= {"cluster": str(tmp_path / "killed.yaml"), "topology": None}
    elif case == "no miss":
        policies = policies[:1]
        values |= {"rate": 1}
    elif case == "tiny":
        values |= {"duration_s": 0.4, "warmup_s": 0, "rate": 10}
    elif case == "mixed":
        values |= {"topology": "2M"}
    else:
        rows = "".join(f"{k * 0.1},{50 + k},{5 + k}\n" for k in range(200))
        (tmp_path / "recorded.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        values = {"workload": str(tmp_path / "recorded.csv"), "topology": "1P1D", "warmup_s": 1, "targets": "relative"}
    evaluate(Scenario.make(**values), policies, range(1), out=tmp_path / "r", workers=1)
    written = write_report(read_results(tmp_path / "r"))
    assert len(written) == len(FIGURES) + 1 and all(path.stat().st_size > 5_000 for path in written)
