"""Matrices: what is read, what is run, what the cells hold, and what is refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from disaggroute.envs.scenario import Scenario
from disaggroute.policies import parse
from disaggroute.policies.policy_file import PolicyFile
from disaggroute.training.csv_file import csv_bytes
from disaggroute.training.evaluation import evaluate
from disaggroute.training.matrix.cells import Matrix, worst_group
from disaggroute.training.matrix.config import load
from disaggroute.training.matrix.plan import Plan, plan_of
from disaggroute.training.matrix.run import run_matrix
from disaggroute.training.matrix.tables import csv_rows, points_table, worst_table
from disaggroute.training.matrix.writing import write_matrix

QUICK = {"workload": "mixed-bursty-a40", "duration_s": 20, "warmup_s": 5, "rate": 14}
SMALL: dict[str, Any] = {
    "name": "small",
    "reference": "marginal-cost",
    "policies": ["marginal-cost", "round-robin", {"name": "mine", "policy": "marginal-cost(w_q=0.1)"}],
    "seeds": 4,
    "scenario": QUICK,
    "conditions": [
        {"name": "usual"},
        {"name": "wide", "topology": "3P6D", "rate": 20},
        {"name": "stale", "predictor": "noisy(1.5)"},
    ],
}


def written(folder: Path, **changes: Any) -> Path:
    """A matrix file: the small one with changes."""
    path = folder / "matrix.yaml"
    path.write_text(yaml.safe_dump(SMALL | changes))
    return path


def planned(folder: Path, data: Path | None = None, **changes: Any) -> Plan:
    return plan_of(*load(written(folder, **changes)), data=data)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    folder = tmp_path_factory.mktemp("matrix")
    return run_matrix(planned(folder), out=folder / "out", workers=1)


def test_every_cell_is_what_an_evaluation_of_its_condition_finds(matrix: Matrix, tmp_path: Path) -> None:
    scenario = Scenario.make(**(QUICK | {"topology": "3P6D", "rate": 20}))
    alone = evaluate(scenario, ["marginal-cost", "round-robin"], range(10_000, 10_004), out=tmp_path, workers=1)
    row = matrix.rows[1]
    assert (row.name, matrix.labels) == ("wide", ("marginal-cost", "round-robin", "mine"))
    runs = {label: [run.summary for run in alone.runs[label]] for label in alone.labels}
    values = {label: [s.goodput for s in some] for label, some in runs.items()}
    cell = row.cells["round-robin"]
    assert cell.goodput.values == tuple(values["round-robin"])
    assert cell.difference is not None
    assert cell.difference.values == pytest.approx(np.subtract(values["round-robin"], values["marginal-cost"]))
    mean = {label: np.mean([s.ttft.p999 for s in some]) for label, some in runs.items()}
    assert cell.ttft_p999 == pytest.approx(mean["round-robin"])
    assert cell.ttft_ratio == pytest.approx(mean["round-robin"] / mean["marginal-cost"])
    assert row.ceiling == pytest.approx(np.mean([s.ceiling for s in runs["round-robin"]]))
    reference = row.cells["marginal-cost"]
    assert reference.difference is None and reference.worst is None and reference.ttft_ratio == 1


def test_the_worst_group_is_the_one_that_loses_most(matrix: Matrix) -> None:
    row = matrix.rows[0]
    runs = {name: [run.summary for run in row.evaluation.runs[row.part.policies[name]]] for name in matrix.labels}
    worst = worst_group(runs["round-robin"], runs["marginal-cost"])
    assert worst is not None and worst == row.cells["round-robin"].worst
    groups = {}
    for of, some in (("by_class", ("tight", "loose")), ("by_family", ("chat", "document", "reasoning"))):
        for name in some:
            pairs = zip(runs["round-robin"], runs["marginal-cost"], strict=True)
            groups[name] = np.mean([getattr(a, of)[name].goodput - getattr(b, of)[name].goodput for a, b in pairs])
    assert worst.group == min(groups, key=lambda name: groups[name])
    assert worst.difference == pytest.approx(min(groups.values()))


def test_the_csv_has_a_row_per_condition_and_policy(matrix: Matrix) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_bytes(csv_rows(matrix)).decode())))
    assert [(row["condition"], row["policy"]) for row in rows] == [
        (condition, policy)
        for condition in ("usual", "wide", "stale")
        for policy in ("marginal-cost", "round-robin", "mine")
    ]
    assert rows[2]["text"] == "marginal-cost(w_q=0.1)" and rows[0]["difference"] == ""
    difference = matrix.rows[0].cells["round-robin"].difference
    assert difference is not None and difference.low is not None
    assert float(rows[1]["difference_low"]) == pytest.approx(difference.low, abs=1e-7)
    assert (rows[7]["predictor"], rows[7]["rate"], rows[7]["seeds"]) == ("noisy(error=1.5)", "14.0", "4")


def test_tables_show_points_with_intervals_or_with_a_mark(matrix: Matrix) -> None:
    full, short = points_table(matrix), points_table(matrix, short=True)
    assert full.columns == ("ceiling", "marginal-cost", "round-robin", "mine") and full.first == "condition"
    for row, (name, cells), (_, marks) in zip(matrix.rows, full.rows, short.rows, strict=True):
        difference = row.cells["round-robin"].difference
        assert difference is not None and name == row.name
        assert cells[2].startswith(f"{100 * difference.mean:+.1f} (")
        assert marks[2].endswith(" ●") == difference.excludes_zero
    assert all(":" not in cells[0] for _, cells in worst_table(matrix).rows)


def test_the_same_matrix_gives_the_same_files_and_runs_nothing_again(matrix: Matrix, tmp_path: Path) -> None:
    one = [path.read_bytes() for path in write_matrix(matrix, tmp_path / "one")]
    out = matrix.rows[0].evaluation.folder.path.parent
    before = {path: path.stat().st_mtime_ns for path in out.rglob("runs/*/*.json")}
    again = run_matrix(planned(tmp_path), out=out, workers=1)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("runs/*/*.json")} == before
    files = write_matrix(again, tmp_path / "two")
    assert [path.name for path in files] == ["matrix.csv", "matrix.png", "matrix.html"]
    assert [path.read_bytes() for path in files] == one


def test_without_figures_those_of_an_earlier_run_are_gone(matrix: Matrix, tmp_path: Path) -> None:
    write_matrix(matrix, tmp_path)
    write_matrix(matrix, tmp_path, figures=False)
    assert [path.name for path in tmp_path.iterdir()] == ["matrix.csv"]


def test_a_policy_is_taken_from_the_condition_s_own_file_where_there_is_one(tmp_path: Path) -> None:
    own = PolicyFile.of(parse("marginal-cost(w_q=0.3)"), {}).yaml()
    (tmp_path / "wide.yaml").write_text(own)
    text = f"marginal-cost@{tmp_path}/{{condition}}.yaml"
    policies = ["round-robin", {"name": "tuned", "policy": text, "otherwise": "marginal-cost@mixed-bursty"}]
    plan = planned(tmp_path, policies=policies, reference="tuned")
    texts = {part.name: part.policies["tuned"] for part in plan.parts}
    assert texts == {
        "usual": "marginal-cost@mixed-bursty",
        "wide": f"marginal-cost@{tmp_path}/wide.yaml",
        "stale": "marginal-cost@mixed-bursty",
    }


def test_a_policy_whose_cuts_fit_no_pool_gives_way_to_the_next_one(tmp_path: Path) -> None:
    cuts = "size-interval(decode_cuts=[100, 200, 300])"
    contender = {"name": "sizes", "policy": cuts, "otherwise": ["size-interval"]}
    plan = planned(tmp_path, policies=["marginal-cost", contender])
    assert [part.policies["sizes"] for part in plan.parts] == [cuts, "size-interval", cuts]


def test_two_names_for_one_policy_run_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, policies=["marginal-cost", {"name": "same", "policy": "marginal-cost(w_q=0.05)"}])
    assert [part.labels for part in plan.parts] == [("marginal-cost",)] * 3
    assert plan.runs == 12 and plan.labels == ("marginal-cost", "same")


def test_a_saturation_rate_is_the_stored_one_times_the_factor(tmp_path: Path) -> None:
    scenario = {"workload": "mixed-bursty", "duration_s": 10, "warmup_s": 0}
    conditions = [{"name": "scarce", "cluster": "1p2d-a40-30k", "saturation": True, "factor": 2}]
    plan = planned(tmp_path, scenario=scenario, conditions=conditions, policies=["marginal-cost"])
    matrix = run_matrix(plan, out=tmp_path / "out", workers=1)
    assert matrix.rows[0].part.scenario.rate == pytest.approx(2 * 5.785)


def test_a_rate_that_nobody_has_stored_is_searched_for_once(tmp_path: Path) -> None:
    scenario = {"workload": "chat", "duration_s": 10, "warmup_s": 0}
    conditions = [{"name": "searched", "topology": "1P1D", "saturation": True}]
    changes = {"scenario": scenario, "conditions": conditions, "policies": ["marginal-cost"], "seeds": 1}
    said: list[str] = []
    rates = []
    for _ in range(2):
        matrix = run_matrix(planned(tmp_path, **changes), out=tmp_path / "out", workers=1, say=said.append)
        rates.append(matrix.rows[0].part.scenario.rate)
    assert rates[0] == rates[1] and rates[0] is not None and rates[0] > 1
    assert [line for line in said if "searching" in line] == ["searched: searching for the saturation rate"]


def test_a_trace_is_looked_for_in_the_data_folder_and_has_one_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    rows = "".join(f"{0.5 * k},{100 + k},{20 + k}\n" for k in range(80))
    (tmp_path / "traces" / "own.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    conditions = [{"name": "usual"}, {"name": "trace", "workload": "own.csv", "rate": 3, "topology": "1P2D"}]
    plan = planned(tmp_path, data=tmp_path, conditions=conditions)
    (trace,) = (part for part in plan.parts if part.name == "trace")
    assert trace.seeds == range(10_000, 10_001) and trace.scenario.workload == str(tmp_path / "traces" / "own.csv")
    monkeypatch.setenv("DISAGGROUTE_DATA", str(tmp_path))
    assert len(planned(tmp_path, conditions=conditions).parts) == 2
    monkeypatch.setenv("DISAGGROUTE_DATA", str(tmp_path / "traces" / "nowhere"))
    absent = planned(tmp_path, conditions=conditions)
    assert [part.name for part in absent.parts] == ["usual"]
    assert absent.skipped == (
        f"condition trace is skipped: the trace own.csv is not in {tmp_path / 'traces' / 'nowhere'}",
    )
    monkeypatch.delenv("DISAGGROUTE_DATA")
    (sentence,) = planned(tmp_path, conditions=conditions).skipped
    assert sentence.endswith("the trace own.csv is not there; name its folder by --data or $DISAGGROUTE_DATA")


def test_a_claim_needs_held_out_seeds_enough_and_leaves_recorded_traces_out_of_it(tmp_path: Path) -> None:
    config, conditions = load(written(tmp_path))
    with pytest.raises(ValueError, match="condition usual: seeds is 4; a claim needs at least 50 held-out seeds"):
        plan_of(config, conditions, claim=True)
    with pytest.raises(ValueError, match="condition usual: duration is 20 s; a claim needs at least 1800"):
        plan_of(config, conditions, claim=True, seeds=50)
    plan = plan_of(config, conditions, claim=True, seeds=50, duration_s=1_800)
    assert all(part.claim and part.seeds == range(30_000, 30_050) for part in plan.parts)
    with pytest.raises(ValueError, match="seed 30000 is held out for claims"):
        plan_of(config, conditions, first_seed=30_000)


def test_a_claim_is_logged_once_per_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("matrix.plan", "evaluation"):
        monkeypatch.setattr(f"disaggroute.training.{place}.check_claim", lambda *_: None)
    config, conditions = load(written(tmp_path, policies=["marginal-cost"]))
    plan = plan_of(config, conditions, only=["usual", "stale"], claim=True, seeds=1)
    log = tmp_path / "held-out.log"
    run_matrix(plan, out=tmp_path / "out", workers=1, log=log)
    lines = [yaml.safe_load(line) for line in log.read_text().splitlines()]
    assert [line["seeds"] for line in lines] == [[30_000, 30_000]] * 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key of a condition": (
        {"conditions": [{"name": "usual", "topologie": "1P2D"}]},
        "condition usual: unknown field 'topologie'; nearest: topology",
    ),
    "an unknown key of the file": ({"polices": []}, "unknown field 'polices'; nearest: policies"),
    "a condition without a name": ({"conditions": [{"rate": 3}]}, "condition 1: name is missing; it is required"),
    "a name that no folder can have": (
        {"conditions": [{"name": "a/b"}]},
        "condition a/b: name: 'a/b' must be lower-case letters, digits and hyphens",
    ),
    "one name for two conditions": ({"conditions": [{"name": "a"}, {"name": "a"}]}, "condition a stands twice"),
    "two rates": (
        {"conditions": [{"name": "a", "saturation": True}]},
        "rate is 14, but saturation is true, which finds one; give one of the two",
    ),
    "a factor on nothing": (
        {"conditions": [{"name": "a", "factor": 2}]},
        "factor is 2, but it multiplies the saturation rate; give saturation: true",
    ),
    "a reference that takes no part": ({"reference": "card"}, "unknown reference 'card'"),
    "one name for two policies": (
        {"policies": ["marginal-cost", {"name": "marginal-cost", "policy": "card"}]},
        "policies names marginal-cost twice",
    ),
    "an unknown policy": (
        {"policies": ["marginal-cost", "marginal-cots"]},
        "condition usual: unknown policy 'marginal-cots'; nearest: marginal-cost",
    ),
    "a file of a policy that is not there": (
        {"policies": ["marginal-cost", "marginal-cost@{condition}"]},
        "condition usual: marginal-cost: unknown policy file 'usual'",
    ),
    "an unknown workload": (
        {"conditions": [{"name": "a", "workload": "mixd"}]},
        "condition a: unknown workload 'mixd'",
    ),
    "held-out seeds": ({"first_seed": 30_000}, "seed 30000 is held out for claims"),
    "nothing to run": (
        {"conditions": [{"name": "a", "workload": "no.csv"}]},
        "small: no condition can be run; condition a is skipped: the trace no.csv is not there",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISAGGROUTE_DATA", raising=False)
    changes, words = BAD[case]
    with pytest.raises(ValueError) as error:
        planned(tmp_path, **changes)
    assert words in str(error.value)


def test_a_condition_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="small: unknown condition 'stael'; nearest: stale"):
        plan_of(*load(written(tmp_path)), only=["stael"])


def test_a_data_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it must be a folder of trace files"):
        planned(tmp_path, data=tmp_path / "none")


def test_the_folder_of_another_matrix_or_of_something_else_is_refused(matrix: Matrix, tmp_path: Path) -> None:
    out = matrix.rows[0].evaluation.folder.path.parent
    with pytest.raises(ValueError, match=r"which holds runs of another configuration \(other matrix\)"):
        run_matrix(planned(tmp_path, name="other"), out=out, workers=1)
    with pytest.raises(ValueError, match=r"condition usual: out is .*usual, which holds runs of another .*other rate"):
        run_matrix(planned(tmp_path, scenario=QUICK | {"rate": 15}), out=out, workers=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="which holds other files"):
        run_matrix(planned(tmp_path), out=tmp_path / "full", workers=1)


def test_an_unreadable_file_of_rates_is_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (tmp_path / "out").mkdir()
    run_matrix(plan_of(*load(written(tmp_path)), only=["usual"], seeds=1), out=tmp_path / "out", workers=1)
    (tmp_path / "out" / "rates.json").write_text("[]")
    with pytest.raises(ValueError, match=r"rates.json is unreadable; delete it and start again"):
        run_matrix(plan, out=tmp_path / "out", workers=1)


def test_the_shipped_matrix_can_be_planned() -> None:
    config, conditions = load("generalisation")
    plan = plan_of(config, [c for c in conditions if "." not in c.workload])
    assert plan.reference == "marginal-cost" and len(conditions) == 11
    clusters = {part.name: part.scenario.cluster for part in plan.parts}
    assert clusters["slow-instance"] == "2p4d-a40-30k-slow"
    assert {part.condition.factor for part in plan.parts if part.name == "scarcity"} == {2.0}
    chosen = {part.name: part.policies["marginal-cost"] for part in plan.parts}
    assert chosen["1p2d"] == "marginal-cost@1p2d"
    assert chosen["stale-polls"] == "marginal-cost@mixed-bursty", "polls are nothing to it"
