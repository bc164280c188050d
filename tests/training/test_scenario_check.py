"""The rule by which a scenario is chosen, on numbers made by hand, and the scenario that was chosen by it."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from disaggroute.envs import cluster_config, workloads
from disaggroute.envs.digest import digest
from disaggroute.envs.environment_config import EnvironmentConfig
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry
from disaggroute.training.comparison import BASELINE
from disaggroute.training.evaluation import evaluate
from disaggroute.training.scenario_check import (
    BOTH,
    DECODE,
    JUDGED,
    PREFILL,
    check_of,
    check_stages,
    judge,
    policies,
    write_table,
)
from disaggroute.training.statistics import Estimate
from disaggroute.training.table import points

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = ("mixed-bursty", "mixed-bursty-fresh", "mixed-bursty-a40")
GOOD = Estimate(0.03, 0.02, 0.04, ())


def verdicts(share: float = 0.84, prefill: Estimate = GOOD, decode: Estimate = GOOD) -> list[bool]:
    return [criterion.holds for criterion in judge(share, prefill, decode)]


def published(name: str) -> dict[str, dict[str, str]]:
    """Rows of a committed table, by policy."""
    with open(DOCS / "data" / f"{name}-scenario-check.csv", newline="") as file:
        return {row["policy"]: row for row in csv.DictReader(file)}


def gain(row: dict[str, str]) -> Estimate:
    return Estimate(float(row["gain"]), float(row["gain_low"]), float(row["gain_high"]), ())


def test_two_gains_at_the_middle_of_round_robins_collapse_fulfil_the_rule() -> None:
    assert verdicts() == [True, True, True]


@pytest.mark.parametrize(
    ("gain", "holds"),
    [
        (Estimate(0.02, 0.001, 0.039, ()), True),
        (Estimate(0.019, 0.015, 0.023, ()), False),  # 1.9 points
        (Estimate(0.03, 0.0, 0.06, ()), False),  # the interval touches zero
        (Estimate(0.03, -0.001, 0.061, ()), False),
        (Estimate(-0.03, -0.04, -0.02, ()), False),
        (Estimate(0.03, None, None, (0.03,)), False),  # too few seeds for an interval
    ],
)
def test_a_stage_gains_at_least_two_points_with_an_interval_above_zero(gain: Estimate, holds: bool) -> None:
    assert verdicts(prefill=gain) == [True, holds, True]
    assert verdicts(decode=gain) == [True, True, holds]


@pytest.mark.parametrize(("share", "holds"), [(0.831, True), (0.849, True), (0.829, False), (0.851, False)])
def test_round_robin_must_be_where_it_collapses(share: float, holds: bool) -> None:
    assert verdicts(share=share) == [holds, True, True]


def test_a_criterion_says_what_was_asked_and_what_was_found() -> None:
    share, prefill, decode = judge(0.8512, Estimate(0.019, 0.015, 0.023, ()), Estimate(0.03, None, None, ()))
    assert share.text == "round robin reaches 0.84 ± 0.01 of the ceiling: 0.8512"
    assert prefill.text == "prefill alone gains at least 2 points, interval above 0: +1.90 (+1.50 … +2.30)"
    assert decode.text.endswith("interval above 0: +3.00 without an interval")


def test_each_judged_policy_routes_the_stages_that_it_is_there_for() -> None:
    described = {label: registry.parse(label).params for label in policies(["least-loaded"])}
    assert list(described) == [*JUDGED, "least-loaded"]
    assert (described[PREFILL]["decode"], described[DECODE]["prefill"]) == ("round-robin", "round-robin")
    assert described[BOTH]["decode"] == "min-tpot"


def test_mixed_instances_have_no_stages_to_judge() -> None:
    with pytest.raises(ValueError, match="the cluster has 4 mixed instances; a check of both decisions needs"):
        check_stages({"mixed": 4})


def test_a_choice_rests_on_the_runs_and_its_table_holds_them(tmp_path: Path) -> None:
    scenario = Scenario.make(workload="mixed-bursty", cluster="2p4d-a40-30k", rate=20, duration_s=40, warmup_s=5)
    evaluation = evaluate(scenario, policies(), range(20_000, 20_004), out=tmp_path / "r", records="none", workers=1)
    check = check_of(evaluation)
    write_table(check, tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="") as file:
        rows = {row["policy"]: row for row in csv.DictReader(file)}
    assert {label: row["smart"] for label, row in rows.items()} == JUDGED
    for label, runs in evaluation.runs.items():
        goodput = math.fsum(run.summary.goodput for run in runs) / len(runs)
        missed = [float(rows[label][f"missed_{name}"]) for name in ("ttft", "tpot", "both")]
        assert float(rows[label]["goodput"]) == pytest.approx(goodput, abs=1e-5)
        assert sum(missed) == pytest.approx(1 - goodput, abs=3e-5) and missed[0] > 0
    assert rows[BASELINE]["gain"] == "" and gain(rows[BOTH]).low is not None
    assert not check.holds and not check.criteria[0].holds  # Far beyond the saturation rate.


def test_the_main_scenario_is_the_default_of_the_environments_at_its_stored_rate() -> None:
    setting = Setting.of(EnvironmentConfig.load().scenario)
    assert setting.name == "mixed-bursty-2p4d-a40-30k" and setting.pools == {"prefill": 2, "decode": 4}
    assert {engine.num_blocks for engine in setting.cluster.instances} == {30_000 // 16}
    assert setting.stored_rate == float(published("mixed-bursty")[BASELINE]["rate"])


def test_the_main_scenario_differs_from_the_studys_in_the_bursts_and_the_kv_budget() -> None:
    main, study = workloads.make("mixed-bursty"), workloads.make("mixed-bursty-a40")
    assert (main.shares, main.config.families()) == (study.shares, study.config.families())
    arrivals = main.config.arrivals.model_dump()
    assert arrivals == study.config.arrivals.model_dump() | {"mean_on_s": 5}
    ours, theirs = cluster_config.load("2p4d-a40-30k").build(), cluster_config.load("2p4d-a40").build()
    for our, their in zip(ours.instances, theirs.instances, strict=True):
        assert our.num_blocks * 2 == their.num_blocks
        assert digest(replace(our, num_blocks=their.num_blocks)) == digest(their)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("mixed-bursty", [True, True, True]),
        ("mixed-bursty-fresh", [True, True, True]),
        ("mixed-bursty-a40", [True, True, False]),
    ],
)
def test_the_published_tables_give_the_verdict_that_the_page_gives(name: str, holds: list[bool]) -> None:
    rows = published(name)
    share = float(rows[BASELINE]["goodput"]) / float(rows[BASELINE]["ceiling"])
    assert verdicts(share, gain(rows[PREFILL]), gain(rows[DECODE])) == holds
    assert {(row["seeds"], row["duration_s"]) for row in rows.values()} == {("50", "1800.0")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_page_shows_the_numbers_of_the_published_tables(name: str) -> None:
    page = (DOCS / "scenarios.md").read_text()
    (section,) = re.findall(rf"data/{name}-scenario-check\.csv.*?\n(\|.*?)\n\n", page, re.DOTALL)
    shown = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines()[2:]]
    expected = []
    for label, row in published(name).items():
        difference = points(gain(row) if row["gain"] else None).replace("-", "−")
        missed = [f"{100 * float(row[k]):.1f}" for k in ("missed_ttft", "missed_tpot", "missed_both")]
        expected.append([label, f"{float(row['goodput']):.3f}", difference, *missed])
    assert shown == expected
