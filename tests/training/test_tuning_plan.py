"""Plans: which seeds, which part of a trace, where the search starts, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import cluster_config
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies.search_space import Dimension
from disaggroute.training.tuning_plan import Plan

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=60, duration_s=20, warmup_s=5)


def plan(policy: str = "marginal-cost", scenario: Scenario = CHAT, **changes: Any) -> Plan:
    return Plan(policy, scenario, **changes)


@pytest.fixture
def recorded(tmp_path: Path) -> Scenario:
    """A trace file of 100 s."""
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.2:.1f},{50 + k % 90},{5 + k % 40}\n" for k in range(501))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return Scenario.make(workload=str(path), topology="1P2D", warmup_s=20)


def test_each_generation_has_traces_of_its_own() -> None:
    assert plan(tuning_seeds=3, first_seed=5).seeds(0) == (5, 6, 7)
    assert plan(tuning_seeds=3, first_seed=5).seeds(1) == (8, 9, 10)


def test_the_traces_begin_anew_at_the_end_of_the_tuning_range() -> None:
    assert plan(tuning_seeds=3, first_seed=9_995).seeds(1) == (9_998, 9_999, 0)
    assert plan(tuning_seeds=4).seeds(2_500) == (0, 1, 2, 3)


def test_validation_has_longer_traces_of_other_seeds() -> None:
    assert plan().validation == range(10_000, 10_020)
    assert plan().validation_scenario.duration_s == 1_800
    assert plan(validation_duration_s=60).validation_scenario.duration_s == 60


def test_of_a_trace_file_one_half_is_tuned_on_and_the_other_validates(recorded: Scenario) -> None:
    halves = plan(scenario=recorded)
    halves.check()
    tuned, validated = Setting.of(halves.tuning_scenario).window, Setting.of(halves.validation_scenario).window
    assert (tuned.start, tuned.end) == (20 * 10**12, 60 * 10**12)
    assert validated.start == tuned.end and validated.end == pytest.approx(100 * 10**12)
    assert (halves.traces, len(halves.validation)) == (1, 1)


def test_of_a_trace_file_a_given_duration_is_tuned_on_and_the_rest_validates(recorded: Scenario) -> None:
    given = plan(scenario=Scenario.make(**(recorded.model_dump() | {"duration_s": 30})))
    assert Setting.of(given.validation_scenario).window.start == 50 * 10**12


def test_the_search_starts_at_the_policy_as_it_is_named() -> None:
    named = plan("marginal-cost(w_q=0.5, sample=2)")
    assert named.params(named.start()) == named.default.params | {"w_q": pytest.approx(0.5)}


@pytest.mark.parametrize("policy", ["length-threshold", "length-threshold(threshold=1e6)"])
def test_without_a_value_in_bounds_it_starts_where_the_space_says(policy: str) -> None:
    (dimension,) = plan(policy).space
    assert plan(policy).params(plan(policy).start())["threshold"] == pytest.approx(dimension.start)


def test_lists_and_mappings_are_started_from_and_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    named = plan()
    space = (Dimension("a", 0, 4, 1, key=0), Dimension("a", 0, 4, 1, key=1), Dimension("b", 0, 4, 1, key="x"))
    given = {"a": [3.0], "b": {"x": 2.0, "other": 7.0}}
    named.__dict__["space"] = space
    monkeypatch.setattr(type(named.default), "params", given)
    assert named.start().tolist() == [0.75, 0.25, 0.5]
    assert named.params([1.0, 0.5, 0.0]) == {"a": [4.0, 2.0], "b": {"x": 0.0, "other": 7.0}}


def test_generations_are_whole_and_stay_within_the_budget() -> None:
    assert (plan().candidates, plan(evaluations=79).generations) == (8, 9)
    assert plan(evaluations=79, population=20).generations == 3


def test_the_command_names_all_that_is_not_as_by_default() -> None:
    changed = plan("marginal-cost(w_q=0.5)", evaluations=40, seed=3, validation_duration_s=60.0)
    assert changed.command() == (
        "disaggroute tune 'marginal-cost(w_q=0.5)' chat --topology 1P2D --rate 60 --duration 20 --warmup 5 "
        "--evaluations 40 --seed 3 --validation-duration 60"
    )


def test_what_only_python_can_ask_for_has_no_command() -> None:
    cluster = cluster_config.from_topology("1P2D", "a40-qwen2.5-3b")
    assert plan(scenario=Scenario.make(workload="chat", rate=60, cluster=cluster)).command() == ""


@pytest.mark.parametrize(
    ("policy", "changes", "sentence"),
    [
        ("round-robin", {}, "policy is round-robin, which has nothing to tune; these have: length-threshold, "),
        ("round-robbin", {}, "unknown policy 'round-robbin'; nearest: round-robin"),
        ("marginal-cost", {"restarts": 2}, "restarts is 2; it must be at least 3"),
        ("marginal-cost", {"tuning_seeds": 2}, "tuning seeds is 2; it must be at least 3"),
        ("marginal-cost", {"population": 3}, "population is 3; it must be at least 4"),
        ("marginal-cost", {"evaluations": 7}, "evaluations is 7; it must be at least 8, one generation"),
        ("marginal-cost", {"seed": -1}, "seed is -1; it must be at least 0"),
        ("marginal-cost", {"first_seed": 30_000}, "seed 30000 is held out for claims"),
        ("marginal-cost", {"first_seed": 10_000}, "seeds 10000 to 10015 leave the tuning range; it is 0 to 9999"),
        ("marginal-cost", {"first_seed": -1}, "first seed is -1; it must not be negative"),
        ("marginal-cost", {"validation_seeds": 101}, "leave the validation range; it is 10000 to 10099"),
        ("marginal-cost", {"validation_seeds": 0}, "validation seeds is 0; it must be at least 1"),
        ("marginal-cost", {"validation_duration_s": 0.0}, "validation duration is 0 s; it must be above 0"),
        ("marginal-cost", {"validation_duration_s": math.nan}, "validation duration is nan s; it must be above 0"),
        ("marginal-cost", {"validation_duration_s": 1e9}, "duration_s is 1000000000.0; it must be less than or equal"),
        ("size-interval(decode_cuts=[9, 99])", {}, "decode_cuts holds 2 numbers; a pool of 2 needs 1"),
    ],
)
def test_a_bad_plan_is_refused(policy: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        plan(policy, **changes).check()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("duration", "changes", "sentence"),
    [
        (90, {}, "duration is 90 s, but recorded has 80 s after the warm-up; tuning needs a part of them"),
        (None, {"validation_duration_s": 50.0}, "validation duration is 50 s, but recorded has 40 s after the part"),
        (None, {"tuning_seeds": 3}, "recorded is one trace"),
        (None, {"validation_seeds": 3}, "recorded is one trace"),
    ],
)
def test_a_bad_plan_for_a_trace_file_is_refused(
    recorded: Scenario, duration: float | None, changes: dict[str, Any], sentence: str
) -> None:
    scenario = Scenario.make(**(recorded.model_dump() | {"duration_s": duration}))
    with pytest.raises(ValueError) as error:
        plan(scenario=scenario, **changes).check()
    assert sentence in str(error.value)
