"""Experiment files: what is read, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disaggroute.training.paper.config import load
from disaggroute.training.paper.plan import Plan, Wanted, plan_of

from .experiment_files import BETTER, SMALL, written


def planned(path: str, **wanted: Any) -> Plan:
    return plan_of(*load(path), Wanted(**wanted))


def finding(**changes: Any) -> dict[str, Any]:
    return {"findings": [SMALL["findings"][0] | changes]}


def compared(**changes: Any) -> dict[str, Any]:
    return finding(comparisons=[{"of": "marginal-cost", "against": "round-robin"} | changes])


def figure(**changes: Any) -> dict[str, Any]:
    return {"figures": [SMALL["figures"][0] | changes, SMALL["figures"][1]]}


def conditions(*some: dict[str, Any]) -> dict[str, Any]:
    return {"conditions": [*SMALL["conditions"], *some]}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"sedes": 3}, "unknown field 'sedes'; nearest: seeds"),
    "an unknown field of a finding": (finding(clam="x"), "finding better: unknown field 'clam'; nearest: claim"),
    "an unknown field of a figure": (figure(serie=1), "figure bars: unknown field 'serie'; nearest: series"),
    "an unknown field of a condition": (
        conditions({"name": "a", "topologie": "1P2D"}),
        "condition a: unknown field 'topologie'; nearest: topology",
    ),
    "an unknown policy of a finding": (
        compared(against="round-robbin", at_least=1),
        "condition usual: unknown policy 'round-robbin'; nearest: round-robin",
    ),
    "an unknown policy of a figure": (
        figure(series=["least-load"]),
        "condition usual: unknown policy 'least-load'; nearest: least-loaded",
    ),
    "an unknown workload": (
        {"scenario": SMALL["scenario"] | {"workload": "mixd-bursty"}},
        "condition usual: unknown workload 'mixd-bursty'; nearest: mixed-bursty",
    ),
    "an unknown condition of a finding": (
        finding(condition="usul"),
        "finding better: unknown condition 'usul'; nearest: usual",
    ),
    "an unknown condition of a figure": (
        figure(conditions=["usual", "wid"]),
        "figure bars: unknown condition 'wid'; nearest: wide",
    ),
    "an unknown condition of a published number": (
        {"published": [{"condition": "no", "policy": "card", "value": 1}]},
        "published: unknown condition 'no'",
    ),
    "a published range upside down": (
        {"published": [{"condition": "usual", "policy": "card", "value": [3, 1]}]},
        "published.0: value is [3.0, 1.0]; of a range the lower end comes first",
    ),
    "a figure of nothing": (figure(quantities=[]), "figure bars: quantities is []; it must have at least 1 item"),
    "an unknown figure": (finding(figure="bar"), "finding better: unknown figure 'bar'; nearest: bars"),
    "an unknown quantity": (
        compared(quantity="gootput", at_least=1),
        "unknown quantity 'gootput'; nearest: goodput",
    ),
    "no rule": (compared(), "nothing given; give one of at_least, within, not_below"),
    "two rules": (
        compared(at_least=1, within=2),
        "at_least and within given; give one of at_least, within, not_below",
    ),
    "a margin of nothing": (compared(at_least=0), "at_least is 0; it must be greater than 0"),
    "a ratio of one": (
        finding(comparisons=[{"of": "marginal-cost", "ratio": True, "at_least": 1}]),
        "ratio is true, but a ratio is that of two policies; give against, and no beyond",
    ),
    "a ratio within": (compared(ratio=True, within=1), "within is given with ratio, which has at_least alone"),
    "beyond nothing": (
        finding(comparisons=[{"of": "card", "beyond": {"of": "card", "against": "random"}, "at_least": 1}]),
        "beyond is given without against; it is compared with the difference of the two",
    ),
    "no comparison": (finding(comparisons=[]), "comparisons is ()"),
    "two findings of one name": (
        {"findings": [SMALL["findings"][0]] * 2},
        "the name better stands twice; each needs one of its own",
    ),
    "two conditions of one name": (conditions({"name": "wide"}), "condition wide stands twice"),
    "a rate of nobody": (
        conditions({"name": "a", "rate_of": "nobody"}),
        "condition a: rate_of: unknown condition 'nobody'",
    ),
    "a rate of one without": (
        conditions({"name": "a", "rate_of": "wrong"}),
        "condition a: rate_of is wrong, which has the rate of another one; name that",
    ),
    "two rates": (
        conditions({"name": "a", "rate_of": "usual", "rate": 3}),
        "rate_of is usual, but the condition has a rate of its own; give one of the two",
    ),
    "a target without a search": (
        conditions({"name": "a", "target": 0.7}),
        "target is 0.7, but it is that of the saturation rate; give saturation: true",
    ),
    "places without words": (figure(at=["one"]), "at has 1 entries; the figure has 2 places"),
    "lines without numbers": (figure(kind="lines"), "kind is lines, whose places are numbers; give at"),
    "one series twice": (figure(series=["card", "card"]), "series names card twice; each needs a name of its own"),
    "no findings": ({"findings": []}, "findings is ()"),
    "held-out seeds": ({"first_seed": 30_000}, "seed 30000 is held out for claims"),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        planned(written(tmp_path, **changes))
    sentence = str(caught.value)
    assert words.removesuffix("()") in sentence and "\n" not in sentence


def test_a_plan_runs_what_its_findings_and_their_figures_name(tmp_path: Path) -> None:
    path = written(tmp_path)
    plan = planned(path)
    assert {part.name: part.labels for part in plan.parts} == {
        "usual": ("round-robin", "marginal-cost"),
        "wide": ("round-robin", "marginal-cost"),
        "wrong": ("marginal-cost",),
    }
    assert (plan.seeds, plan.runs) == (range(10_000, 10_005), 25)
    some = planned(path, findings=["better"], seeds=2, first_seed=7)
    assert [part.name for part in some.parts] == ["usual", "wide"] and some.seeds == range(7, 9)
    with pytest.raises(ValueError, match="small: unknown finding 'beter'; nearest: better"):
        planned(path, findings=["beter"])


def test_quick_takes_few_seeds_and_a_short_window_and_options_go_before_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    quick = planned(path, quick=True)
    assert len(quick.seeds) == 2 and {part.scenario.duration_s for part in quick.parts} == {10}
    mine = planned(path, quick=True, seeds=3, duration_s=12)
    assert len(mine.seeds) == 3 and {part.scenario.duration_s for part in mine.parts} == {12}


def test_a_field_of_a_condition_takes_the_place_of_those_of_the_scenario_that_say_the_same(tmp_path: Path) -> None:
    _, known = load(written(tmp_path, **conditions({"name": "a", "cluster": "2p4d-a40", "saturation": True})))
    assert known["a"].topology is None and known["a"].rate is None and known["wrong"].rate is None


def test_a_claim_needs_enough_held_out_seeds(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ValueError, match="condition usual: seeds is 5; a claim needs at least 50 held-out seeds"):
        planned(path, claim=True)
    assert planned(path, claim=True, seeds=50, duration_s=1_800).seeds == range(30_000, 30_050)


def test_the_rules_of_the_study_s_findings_stand_in_the_file_that_ships() -> None:
    config, known = load("paper")
    plan = plan_of(config, known)
    assert len(plan.seeds) == 50 and known["study"].duration_s == 1_800
    assert {figure.name for figure in plan.figures} == {figure.name for figure in config.figures}
    names = {each.name for each in config.findings}
    assert {"highest-mean", "chat-loses", "width-3", "width-6", "narrow", "scarcity", "frontier", "noise"} <= names
    shown = {(arm.condition, arm.policy, q) for f in config.figures for arm in f.arms() for q in f.quantities}
    assert {(each.condition, each.policy, each.quantity) for each in config.published} <= shown
    assert BETTER["of"] in {arm.policy for each in config.findings for arm in each.arms()}
