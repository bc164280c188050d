"""Scenarios of the suite and its roster: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.envs.setting import Setting
from disaggroute.policies import policy_file, registry
from disaggroute.training.seeds import HELD_OUT, TUNING, VALIDATION
from disaggroute.training.suite import config, roster

SMALL: dict[str, Any] = {
    "name": "small",
    "version": 3,
    "notes": "Two instances.",
    "workload": "chat",
    "topology": "1P1D",
    "rate": 6,
    "duration_s": 10,
}


def written(folder: Path, **changes: Any) -> str:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (SMALL | changes).items() if value is not None}))
    return str(path)


def test_a_scenario_is_a_condition_with_a_version_and_fixed_seeds(tmp_path: Path) -> None:
    scenario = config.load(written(tmp_path))
    assert (scenario.name, scenario.version, scenario.rate) == ("small", 3, 6)
    seeds = scenario.seeds
    assert all(seed in TUNING for seed in seeds.tuning.seeds) and all(s in HELD_OUT for s in seeds.held_out.seeds)
    assert seeds.validation.seeds == range(10_020, 10_040) and VALIDATION.first + 20 == 10_020
    assert len(seeds.held_out.seeds) == 50


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": None}, "version is missing; it is required"),
        ({"version": 0}, "version is 0; it must be greater than or equal to 1"),
        ({"notes": None}, "notes is missing; it is required"),
        ({"name": "Small"}, "'Small' must be lower-case letters, digits and hyphens"),
        ({"rte": 5}, "unknown field 'rte'; nearest: rate"),
        ({"saturation": True}, "rate is 6, but saturation is true, which finds one; give one of the two"),
        ({"seeds": {"validation": {"first": 0, "count": 5}}}, "seeds 0 to 4 leave the validation range"),
        ({"seeds": {"held_out": {"first": 30_090, "count": 50}}}, "seeds 30090 to 30139 leave the held-out range"),
        ({"seeds": {"tuning": {"first": 10_000, "count": 5}}}, "leave the tuning range; it is 0 to 9999"),
        ({"seeds": {"validation": {"first": 10_000, "count": 0}}}, "must be greater than or equal to 1"),
        ({"tuned_on": "mixed-brusty"}, "unknown policy file in tuned_on 'mixed-brusty'; nearest: mixed-bursty"),
        ({"tuned_on": []}, "tuned_on is []; it must have at least 1 item"),
        ({"duration_s": -1}, "duration_s is -1; it must be greater than 0"),
    ],
)
def test_a_bad_scenario_is_refused_in_one_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        config.load(written(tmp_path, **changes))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_scenario_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario of the suite 'failure'; nearest: failures"):
        config.load("failure")
    with pytest.raises(ValueError, match=r"unknown scenario of the suite 'best-known'"):
        config.load("best-known")


def test_scenarios_are_chosen_once_each(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [scenario.name for scenario in config.load_all(["failures", path])] == ["failures", "small"]
    with pytest.raises(ValueError, match="scenarios names small twice; each runs once"):
        config.load_all([path, path])
    with pytest.raises(ValueError, match="scenarios is empty; at least one scenario is needed"):
        config.load_all([])


def test_the_content_tells_what_decides_numbers_and_nothing_else(tmp_path: Path) -> None:
    usual = config.load(written(tmp_path)).content
    assert config.load(written(tmp_path, notes="Other words.", version=4, tuned_on="shipped")).content == usual
    cluster = {"name": "1p1d", "prefill": {"count": 1, "profile": "a40-qwen2.5-3b"}}
    cluster["decode"] = {"count": 1, "profile": "a40-qwen2.5-3b", "overrides": {"kv_tokens": 20_000}}
    changes: list[dict[str, Any]] = [
        {"rate": 7},
        {"duration_s": 11},
        {"predictor": "oracle"},
        {"constants_scale": 2.0},
        {"topology": None, "cluster": cluster},
        {"seeds": {"validation": {"first": 10_020, "count": 5}}},
        {"workload": "reasoning"},
    ]
    contents = [config.load(written(tmp_path, **change)).content for change in changes]
    assert len({usual, *contents}) == len(changes) + 1


def test_the_shipped_scenarios_are_twelve_to_sixteen_and_all_in_the_roster() -> None:
    names = roster.load().scenarios
    assert 12 <= len(names) <= 16 and sorted(names) == sorted(config.names())
    for name in names:
        scenario = config.load(name)
        assert scenario.beside is None or scenario.beside in names
        if not scenario.recorded:  # Nothing is searched for, and a claim can be made.
            assert scenario.rate is not None or Setting.of(scenario.scenario).stored_rate is not None
            assert scenario.duration_s == 1800 and len(scenario.seeds.held_out.seeds) >= 50
        assert scenario.rate is not None or not scenario.recorded


def test_every_instance_of_the_failures_that_leaves_comes_back_and_no_pool_is_ever_empty() -> None:
    cluster = Setting.of(config.load("failures").scenario).cluster
    away: set[int] = set()
    for event in cluster.events:
        away = away - {event.instance} if event.action == "return" else away | {event.instance}
        assert not away >= {0, 1} and not away >= {2, 3, 4, 5}
    assert not away and cluster.on_kill == "reroute"


def test_every_shipped_policy_is_on_the_roster_as_it_is_and_tuned() -> None:
    lineup = roster.load()
    texts = {entry.policy for entry in lineup.policies}
    built_in = [name for name in registry.names() if name in registry._MODULES]
    # Without weights these two say what `least-ttft(decode=min-tpot)` says.
    assert set(built_in) - {"linear", "network"} | {"linear@shipped", "network@shipped"} <= texts
    tuned = {text.split("@")[0] for text in texts if "@" in text}
    assert {name for name in built_in if policy_file.shipped(name)} <= tuned


def test_what_is_slow_keeps_to_small_clusters_and_few_seeds() -> None:
    entry = roster.load().entry("lookahead")
    assert entry.runs_in("narrow", 6) and not entry.runs_in("wide", 12) and entry.seeds == 4
    assert not entry.runs_in("chat", 6)  # So many requests per second that a run takes it minutes.


def test_a_tuned_policy_takes_the_file_that_stands_for_the_scenario() -> None:
    lineup, scenario = roster.load(), config.load("chat")
    contender = lineup.entry("card (tuned)").in_scenario(scenario)
    assert (contender.policy, contender.otherwise) == ("card@{condition}", ("card@mixed-bursty-a40", "card"))
    assert contender.policy_in("chat", Setting.of(scenario.scenario)) == "card@mixed-bursty-a40"


def test_several_files_stand_in_in_order(tmp_path: Path) -> None:
    scenario = config.load(written(tmp_path, topology="2P4D", tuned_on=["1p2d", "mixed-bursty"]))
    setting = Setting.of(scenario.scenario)
    lineup = roster.load()
    contender = lineup.entry("marginal-cost (tuned)").in_scenario(scenario)
    assert contender.otherwise == ("marginal-cost@1p2d", "marginal-cost@mixed-bursty", "marginal-cost")
    assert contender.policy_in("small", setting) == "marginal-cost@1p2d"
    # Of the first there is no file.
    assert lineup.entry("card (tuned)").in_scenario(scenario).policy_in("small", setting) == "card@mixed-bursty"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zero": "round-robbin"}, "unknown zero 'round-robbin'; nearest: round-robin"),
        ({"reference": "card"}, "unknown reference 'card'"),
        ({"policies": ["round-robin", "round-robin"]}, "policies names round-robin twice; each needs a name of"),
        ({"policies": [{"policy": "round-robin", "seeds": 2}]}, "zero is round-robin, which must run"),
        ({"policies": ["round-robin", {"policy": "card", "not_in": ["chatt"]}]}, "not_in of card 'chatt'; nearest"),
        ({"policies": [{"policy": "round-robin", "not_in": ["chat"]}]}, "zero is round-robin, which must run"),
        ({"scenarios": []}, "scenarios is []; it must have at least 1 item"),
    ],
)
def test_a_bad_roster_is_refused_in_one_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    small = {"zero": "round-robin", "reference": "round-robin", "scenarios": ["chat"], "policies": ["round-robin"]}
    path = tmp_path / "roster.yaml"
    path.write_text(yaml.safe_dump(small | changes))
    with pytest.raises(ValueError, match=r".") as caught:
        roster.load(path)
    assert words in str(caught.value)


def test_policies_are_chosen_by_their_names_or_texts() -> None:
    lineup = roster.load()
    chosen = lineup.chosen(["card (tuned)", "marginal-cost(w_q=0.3)"])
    assert [entry.label for entry in chosen] == ["card (tuned)", "marginal-cost(w_q=0.3)"]
    assert chosen[0].heuristic and not chosen[1].heuristic
    with pytest.raises(ValueError, match="policy names card twice; each runs once"):
        lineup.chosen(["card", "card"])
    with pytest.raises(ValueError, match="unknown policy 'carrd'; nearest: card"):
        lineup.chosen(["carrd"])
