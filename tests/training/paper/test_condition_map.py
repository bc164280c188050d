"""Maps of conditions: what a point changes, what is found there, and what is refused."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from disaggroute.envs import cluster_config, profiles, workloads
from disaggroute.envs.setting import Setting
from disaggroute.training import evaluation as evaluations
from disaggroute.training.paper.changes import changed_condition, changed_policy
from disaggroute.training.paper.condition_map import ConditionMap, chosen, map_plan_of, open_folder, run_map
from disaggroute.training.paper.config import Arm, Condition
from disaggroute.training.paper.map_report import write_map
from disaggroute.training.paper.map_tables import axis_table, count_table
from disaggroute.training.paper.plan import Wanted
from disaggroute.training.paper.points import DEFAULT, Point, load

from .experiment_files import written

AXES: list[dict[str, Any]] = [
    {
        "name": "bursts",
        "title": "Bursts",
        "points": [{"name": "poisson", "workload": {"arrivals": {"process": "poisson"}}}],
    },
    {
        "name": "ledger",
        "title": "Ledger",
        "points": [
            {"name": "full", "scenario": {"observability": "full"}},
            {"name": "committed", "policies": {"marginal-cost": "marginal-cost(backlog=committed)"}},
        ],
    },
]


def map_file(folder: Path, **changes: Any) -> str:
    """Path of a file of a small map with changes."""
    path = folder / "map.yaml"
    content = {"name": "small-map", "experiment": written(folder), "seeds": 4, "axes": AXES}
    path.write_text(yaml.safe_dump(content | changes))
    return str(path)


def run(folder: Path, out: Path, **changes: Any) -> ConditionMap:
    config, experiment, conditions = load(map_file(folder, **changes))
    open_folder(config, out)
    plan = map_plan_of(config, experiment, conditions, chosen(config, experiment, Wanted()), out=out)
    return run_map(plan, out=out, command="disaggroute experiment conditions", workers=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ConditionMap:
    folder = tmp_path_factory.mktemp("map")
    return run(folder, folder / "out")


CONDITION = Condition.model_validate({"name": "a", "workload": "mixed-bursty-a40", "topology": "2P4D", "rate": 14})


def changed(out: Path, **changes: Any) -> Setting:
    point = Point.model_validate({"name": "p", **changes})
    return Setting.of(changed_condition(CONDITION, point, out).scenario)


def test_the_default_changes_nothing(tmp_path: Path) -> None:
    assert changed_condition(CONDITION, DEFAULT, tmp_path) == CONDITION
    assert not list(tmp_path.iterdir())


def test_a_point_changes_arrivals_and_nothing_else(tmp_path: Path) -> None:
    path = changed_condition(
        CONDITION, Point(name="p", workload={"arrivals": {"process": "poisson"}}), tmp_path
    ).workload
    made, usual = workloads.make(path), workloads.make("mixed-bursty-a40")
    assert path == str(tmp_path / "files" / "mixed-bursty-a40-p.yaml")
    assert made.config.arrivals.process == "poisson" and made.families == usual.families


def test_the_spread_of_lengths_is_scaled_in_every_family_of_a_mix(tmp_path: Path) -> None:
    point = Point(name="p", length_spread=0.5)
    made = workloads.make(changed_condition(CONDITION, point, tmp_path).workload)
    usual = workloads.make("mixed-bursty-a40")
    assert made.shares == usual.shares
    for mine, theirs in zip(made.families.values(), usual.families.values(), strict=True):
        for law in ("prompt", "output"):
            pairs = zip(getattr(mine, law).parts, getattr(theirs, law).parts, strict=True)
            assert all((a.median, a.sigma) == (b.median, pytest.approx(b.sigma / 2)) for a, b in pairs)
        assert mine.tight_share == theirs.tight_share


def test_a_point_changes_profiles_and_clusters(tmp_path: Path) -> None:
    setting = changed(tmp_path, profile={"memory": {"kv_tokens": 30_000}, "step": {"per_sequence_us": 0}})
    engine, usual = setting.cluster.decode[0], profiles.load("a40-qwen2.5-3b").engine()
    assert engine.num_blocks == 30_000 // 16 and not engine.batch.any() and engine.per_context == usual.per_context
    assert changed(tmp_path, profile={"slo": {"ttft_tight_ms": 350}}).prepare(0).trace.ttft_target.min() == 350 * 10**9
    both = changed(tmp_path, cluster={"first_token": "prefill"}, profile={"transfer": {"egress_gb_per_s": 2}})
    assert both.cluster.first_token == "prefill" and len(both.cluster.decode) == 4
    assert both.cluster.prefill[0].egress_per_block == 10 * usual.egress_per_block
    assert cluster_config.load(str(tmp_path / "files" / "2p4d-a40-qwen2.5-3b-p-p.yaml")).first_token == "prefill"


def test_a_field_of_the_scenario_is_left_to_conditions_that_set_it(tmp_path: Path) -> None:
    own = CONDITION.model_copy(update={"predictor": "constant(9)"})
    point = Point(name="p", scenario={"predictor": "prompt"})
    assert changed_condition(CONDITION, point, tmp_path).predictor == "prompt"
    assert changed_condition(own, point, tmp_path).predictor == "constant(9)"


def test_a_policy_keeps_its_parameters_and_its_own_file() -> None:
    point = Point(name="p", policies={"marginal-cost": "marginal-cost@mixed-bursty-a40(guard=2)"})
    assert changed_policy("marginal-cost(rho=0)", point) == "marginal-cost@mixed-bursty-a40(guard=2, rho=0)"
    assert changed_policy("marginal-cost@mixed-bursty", point) == "marginal-cost@mixed-bursty"
    assert changed_policy("least-loaded", point) == "least-loaded"


def test_a_cell_is_what_the_finding_is_under_that_change(found: ConditionMap) -> None:
    poisson = found.measured["poisson"]
    assert {part.scenario.workload.rsplit("/")[-1] for part in poisson.parts} == {"mixed-bursty-a40-poisson.yaml"}
    mc, rr = (poisson.values(Arm(policy=policy, condition="usual")) for policy in ("marginal-cost", "round-robin"))
    cell = found.cells["better", "poisson"]
    assert cell.compared[0].effect.estimate.values == pytest.approx(100 * np.subtract(mc, rr))
    texts = {part.name: part.labels for part in found.measured["committed"].parts}
    assert texts["usual"] == ("marginal-cost(backlog=committed)", "round-robin")


def test_a_finding_that_contradicts_a_point_is_left_out_there_and_that_is_said(found: ConditionMap) -> None:
    cell = found.cells["robust", "full"]
    assert cell.state == "missing" and "with observability full the router sees true lengths" in cell.missing
    assert found.cells["better", "full"].compared and found.cells["robust", "default"].compared
    assert dict(axis_table(found, found.plan.axes[1]).rows)["Robust"][1] == "–"


def test_states_follow_the_intervals(found: ConditionMap) -> None:
    for cell in found.cells.values():
        inside = [each.effect.assured for each in cell.compared]
        outside = [each.effect.excluded for each in cell.compared]
        expected = "missing" if not inside else "holds" if all(inside) else "fails" if any(outside) else "open"
        assert cell.state == expected
    for (_, cells), finding in zip(count_table(found).rows, found.plan.findings, strict=True):
        assert sum(int(count) for count in cells[1:]) == len(found.plan.points) == 4
        states = [found.cells[finding.name, point.name].state for point, _ in found.plan.points]
        assert int(cells[1]) == states.count("holds")


def test_the_page_needs_nothing_else_and_names_the_commands(found: ConditionMap, tmp_path: Path) -> None:
    files = write_map(found, tmp_path)
    assert [path.name for path in files] == ["conditions.csv", "conditions.png", "conditions.html"]
    page = files[-1].read_text()
    assert not re.search(r"https?://|@import|url\(|<script|<link|<iframe", page)
    assert "disaggroute tune marginal-cost" in page and "mixed-bursty-a40-poisson.yaml" in page
    rows = list(csv.DictReader(io.StringIO(files[0].read_text())))
    assert {(row["axis"], row["point"]) for row in rows} == {
        ("", "default"),
        ("bursts", "poisson"),
        ("ledger", "full"),
        ("ledger", "committed"),
    }
    (row,) = (row for row in rows if (row["finding"], row["point"]) == ("better", "poisson"))
    effect = found.cells["better", "poisson"].compared[0].effect
    assert float(row["effect"]) == pytest.approx(effect.estimate.mean, abs=1e-6)
    write_map(found, tmp_path, figures=False)
    assert [path.name for path in tmp_path.iterdir()] == ["conditions.csv"]


def test_an_interrupted_map_goes_on(found: ConditionMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = evaluations.run_on, []

    def broken(*arguments: Any, **options: Any) -> Any:
        if len(done) == 30:
            raise KeyboardInterrupt
        done.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(evaluations, "run_on", broken)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tmp_path / "out")
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/runs/*/runs/*/*.json")}
    monkeypatch.undo()
    again = run(tmp_path, tmp_path / "out")
    assert len(kept) == 30 and {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [row["effect"] for row in _rows(again)] == [row["effect"] for row in _rows(found)]


def _rows(found: ConditionMap) -> list[dict[str, Any]]:
    from disaggroute.training.paper.map_tables import map_rows

    return [row for row in map_rows(found) if "effect" in row]


def axis(**point: Any) -> dict[str, Any]:
    return {"axes": [{"name": "one", "title": "One", "points": [{"name": "p"} | point]}]}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field of a point": (axis(workloads={}), "axis one: unknown field of points.0 'workloads'"),
    "an unknown field of a workload": (
        axis(workload={"arrival": {}}),
        "point p: mixed-bursty-a40: unknown field 'arrival'; nearest: arrivals",
    ),
    "an unknown field of a profile": (axis(profile={"memry": {}}), "unknown field 'memry'; nearest: memory"),
    "an unknown field of a cluster": (
        axis(cluster={"first_tokn": "prefill"}),
        "point p: 2P4D: unknown field 'first_tokn'; nearest: first_token",
    ),
    "a value out of range": (axis(profile={"memory": {"kv_tokens": 0}}), "memory.kv_tokens is 0"),
    "an unknown policy": (
        axis(policies={"marginal-cost": "marginal-cots"}),
        "axis one: point p: policies: unknown policy 'marginal-cots'; nearest: marginal-cost",
    ),
    "an unknown policy that is to be replaced": (
        axis(policies={"marginal-cots": "marginal-cost"}),
        "axis one: point p: policies: unknown policy 'marginal-cots'; nearest: marginal-cost",
    ),
    "a spread of nothing": (axis(length_spread=0), "length_spread is 0; it must be greater than 0"),
    "one name for two points": (
        {"axes": [AXES[0], AXES[0] | {"name": "other"}]},
        "the name poisson stands twice; each needs one of its own",
    ),
    "the name of the default": (axis(name="default"), "the name default stands twice"),
    "an unknown finding": ({"findings": ["beter"]}, "unknown finding 'beter'; nearest: better"),
    "an unknown experiment": ({"experiment": "papr"}, "unknown experiment 'papr'; nearest: paper"),
    "held-out seeds": ({"first_seed": 30_000}, "seed 30000 is held out for claims"),
    "no axes": ({"axes": []}, "axes is ()"),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        run(tmp_path, tmp_path / "out", **changes)
    sentence = str(caught.value)
    assert words.removesuffix("()") in sentence and "\n" not in sentence


def test_a_cluster_that_is_named_cannot_have_other_engines(tmp_path: Path) -> None:
    named = Condition.model_validate({"name": "a", "cluster": "2p4d-a40", "rate": 3})
    point = Point(name="p", profile={"memory": {"kv_tokens": 30_000}})
    with pytest.raises(ValueError, match="cluster is 2p4d-a40, but p changes engines; name a topology"):
        changed_condition(named, point, tmp_path)


def test_what_is_chosen_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    config, experiment, _ = load(map_file(tmp_path))
    with pytest.raises(ValueError, match="small-map: unknown axis 'burst'; nearest: bursts"):
        chosen(config, experiment, Wanted(), ["burst"])
    with pytest.raises(ValueError, match="small-map: unknown finding 'x'"):
        chosen(config, experiment, Wanted(findings=["x"]))
    quick = chosen(config, experiment, Wanted(quick=True), ["ledger"])
    assert (len(quick.seeds), quick.duration_s, [axis.name for axis in quick.axes]) == (4, 60, ["ledger"])


def test_the_map_that_ships_names_axes_that_the_simulator_has(tmp_path: Path) -> None:
    config, experiment, conditions = load("conditions")
    plan = map_plan_of(config, experiment, conditions, chosen(config, experiment, Wanted()), out=tmp_path)
    assert {axis.name for axis in plan.axes} == {
        *("step-time", "burstiness", "lengths", "kv", "slo", "first-token", "ledger", "weights")
    }
    assert {point for point, _ in plan.missing} == {"prompt-predictor", "true-state"}
    assert len(plan.points) == 1 + sum(len(axis.points) for axis in config.axes)
