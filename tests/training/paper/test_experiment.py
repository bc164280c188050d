"""Experiments: what is run, compared, shown and written."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training import evaluation as evaluations
from disaggroute.training.evaluation import evaluate
from disaggroute.training.paper.config import Arm, Published, load
from disaggroute.training.paper.experiment import Experiment, Residual
from disaggroute.training.paper.findings import find
from disaggroute.training.paper.plan import Plan, plan_of
from disaggroute.training.paper.report import simulator_remarks, write
from disaggroute.training.paper.runs import measure
from disaggroute.training.paper.tables import count_words, number_table, residual_of, verdict_table, winner_table

from .experiment_files import SMALL, written


def planned(folder: Path, **changes: Any) -> Plan:
    return plan_of(*load(written(folder, **changes)))


def experiment_of(plan: Plan, out: Path, **options: Any) -> Experiment:
    measured = measure(plan, out=out, workers=1, **options)
    return Experiment(plan, measured, find(plan.config, plan.findings, measured), "disaggroute experiment paper")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("experiment")
    return experiment_of(planned(folder), folder / "out")


def goodput(experiment: Experiment, policy: str, condition: str) -> np.ndarray[Any, Any]:
    return experiment.measured.values(Arm(policy=policy, condition=condition))


def test_the_runs_are_those_of_ordinary_evaluations(experiment: Experiment, tmp_path: Path) -> None:
    scenario = Scenario.make(**(SMALL["scenario"] | {"topology": "3P6D", "rate": 21}))
    alone = evaluate(scenario, ["marginal-cost"], range(10_000, 10_005), out=tmp_path, workers=1)
    values = [run.summary.goodput for run in alone.runs["marginal-cost"]]
    assert goodput(experiment, "marginal-cost", "wide").tolist() == values
    assert "--topology 3P6D" in experiment.measured.commands["wide"]
    part = {part.name: part for part in experiment.measured.parts}["wrong"]
    assert part.scenario.rate == 14 and part.scenario.predictor == "noisy(1.5)"


def test_comparisons_are_taken_trace_by_trace(experiment: Experiment) -> None:
    better, robust, tail = experiment.found
    mc, rr = (goodput(experiment, policy, "usual") for policy in ("marginal-cost", "round-robin"))
    assert better.compared[0].effect.estimate.values == pytest.approx(100 * (mc - rr))
    wrong = goodput(experiment, "marginal-cost", "wrong")
    assert robust.compared[0].effect.estimate.values == pytest.approx(100 * (wrong - mc))
    wide = [goodput(experiment, policy, "wide") for policy in ("marginal-cost", "round-robin")]
    assert robust.compared[1].effect.estimate.values == pytest.approx(100 * ((mc - rr) - (wide[0] - wide[1])))
    assert robust.compared[1].text == (
        "(marginal-cost − round-robin) − (marginal-cost in wide − round-robin in wide)"
    )
    ttft = [
        experiment.measured.values(Arm(policy=policy, condition="wide"), "ttft-p99", 3)
        for policy in ("round-robin", "marginal-cost")
    ]
    assert tail.seeds == 3 and tail.compared[0].unit == "%"
    assert tail.compared[0].effect.estimate.values == pytest.approx(100 * (ttft[0] / ttft[1] - 1))


def test_spread_is_the_distance_from_the_median(experiment: Experiment) -> None:
    arm = Arm(policy="round-robin", condition="usual")
    values = experiment.measured.values(arm)
    assert experiment.measured.values(arm, "goodput-spread") == pytest.approx(np.abs(values - np.median(values)))


def test_tables_hold_the_study_s_numbers_beside_ours(experiment: Experiment) -> None:
    bars, lines = experiment.plan.figures
    table = number_table(experiment, bars)
    titles = ("goodput, here", "study", "CV of tokens per decode instance, %, here", "study")
    assert table.columns == titles
    rows = dict(table.rows)
    mean = np.mean(goodput(experiment, "marginal-cost", "usual"))
    assert rows["marginal-cost, usual"][0].startswith(f"{mean:.3f} (") and rows["marginal-cost, usual"][1] == "0.864"
    assert rows["marginal-cost, wide"][3] == "1.0–3.0" and rows["round-robin, wide"][1] == "–"
    assert dict(number_table(experiment, lines).rows)["wrong, 6"][0].startswith(
        f"{np.mean(goodput(experiment, 'marginal-cost', 'wrong')):.3f}"
    )


def test_the_study_s_simulator_is_compared_by_winner_and_residual(experiment: Experiment) -> None:
    mc, rr = (float(np.mean(goodput(experiment, policy, "usual"))) for policy in ("marginal-cost", "round-robin"))
    assert residual_of(experiment) == pytest.approx((abs(mc - 0.864) + abs(rr - 0.836)) / 2)
    (row,) = winner_table(experiment).rows
    ours = "marginal-cost" if mc > rr else "round-robin"
    assert row[0] == "usual" and row[1][:3] == (
        "marginal-cost 0.864",
        f"{ours} {max(mc, rr):.3f}",
        "yes" if ours == "marginal-cost" else "no",
    )
    (remark,) = simulator_remarks(experiment)
    words = "smaller than" if residual_of(experiment) < 0.068 else "not smaller than"
    assert f"{residual_of(experiment):.3f}, {words} that simulator's 0.068" in remark


@pytest.mark.parametrize(("ours", "difference"), [(0.85, 0.0), (0.8, -0.02), (0.9, 0.02)])
def test_a_residual_to_a_range_is_that_to_its_nearest_end(ours: float, difference: float) -> None:
    published = Published(condition="usual", policy="marginal-cost", value=(0.82, 0.88))
    assert Residual(published, ours).difference == pytest.approx(difference)


def test_the_page_needs_nothing_else_and_shows_every_verdict(experiment: Experiment, tmp_path: Path) -> None:
    files = write(experiment, tmp_path)
    assert [path.name for path in files] == ["findings.csv", "numbers.csv", "bars.png", "lines.png", "report.html"]
    page = files[-1].read_text()
    assert not re.search(r"https?://|@import|url\(|<script|<link|<iframe", page)
    for found in experiment.found:
        assert f"{found.finding.claim}: {found.verdict}." in page
    assert page.count("data:image/png;base64,") == 2
    for name, command in experiment.measured.commands.items():
        assert command.startswith("disaggroute evaluate mixed-bursty-a40 ") and name in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "findings.csv").read_text())))
    assert [row["finding"] for row in rows] == ["better", "robust", "robust", "tail"]
    assert [row["verdict"] for row in rows[:2]] == [found.verdict for found in experiment.found[:2]]
    numbers = list(csv.DictReader(io.StringIO((tmp_path / "numbers.csv").read_text())))
    (row,) = (r for r in numbers if (r["condition"], r["policy"], r["study_low"]) == ("wide", "marginal-cost", "1.0"))
    assert (row["quantity"], row["study_high"], row["rate"]) == ("decode-token-cv", "3.0", "21.0")
    write(experiment, tmp_path, figures=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings.csv", "numbers.csv"]


def test_verdicts_are_counted(experiment: Experiment) -> None:
    counts = [int(word) for word in re.findall(r"\d+", count_words(experiment))]
    assert counts[0] == 3 == sum(counts[1:])
    assert [cells[-1] for _, cells in verdict_table(experiment).rows] == [f.verdict for f in experiment.found]


def test_an_interrupted_experiment_goes_on_to_the_same_bytes(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [path.read_bytes() for path in write(experiment, tmp_path / "whole")]
    real, done = evaluations.run_on, []

    def broken(*arguments: Any, **options: Any) -> Any:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(evaluations, "run_on", broken)
    with pytest.raises(KeyboardInterrupt):
        experiment_of(planned(tmp_path), tmp_path / "out")
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/runs/*/runs/*/*.json")}
    assert len(kept) == 7
    monkeypatch.undo()
    told: list[tuple[int, int]] = []
    again = experiment_of(planned(tmp_path), tmp_path / "out", on_run=lambda *pair: told.append(pair))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert told[0][0] == 7 and told[-1] == (25, 25)
    assert [path.read_bytes() for path in write(again, tmp_path / "again")] == whole


def test_rates_that_had_to_be_searched_for_are_kept_and_shared(tmp_path: Path) -> None:
    changes = {
        "scenario": {"workload": "chat", "topology": "1P1D", "saturation": True, "duration_s": 10, "warmup_s": 0},
        "conditions": [
            {"name": "usual"},
            {"name": "wide", "target": 0.6},
            {"name": "wrong", "predictor": "oracle"},
        ],
        "seeds": 1,
    }
    said: list[str] = []
    rates = []
    for _ in range(2):
        found = experiment_of(planned(tmp_path, **changes), tmp_path / "out", say=said.append)
        rates.append([part.scenario.rate for part in found.measured.parts])
    assert rates[0] == rates[1]
    usual, wide, wrong = rates[0]
    assert usual == wrong and usual is not None and wide is not None and wide > usual
    searched = [line for line in said if "searching" in line]
    assert searched == ["usual: searching for the saturation rate", "wide: searching for the saturation rate"]


def test_the_folder_of_another_experiment_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    out = next(iter(experiment.measured.folders.values())).parents[1]
    with pytest.raises(ValueError, match="which holds runs of another configuration"):
        measure(planned(tmp_path, name="other"), out=out, workers=1)
