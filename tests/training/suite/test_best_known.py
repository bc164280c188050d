"""What is best known: what a score divides by, when it is replaced, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.training.suite import best_known, config, roster
from disaggroute.training.suite.best_known import Best, BestKnown


def best(**changes: object) -> Best:
    values = {"version": 1, "content": "aa", "policy": "least-ttft", "goodput": 0.9, "round_robin": 0.8}
    return Best.model_validate(values | {"command": "disaggroute experiment suite --update-best"} | changes)


def test_a_score_divides_by_the_gain_of_the_best_but_by_two_points_at_least() -> None:
    assert best().gap == pytest.approx(0.1)
    assert best(goodput=0.805).gap == 0.02
    assert best(goodput=0.7).gap == 0.02


def test_only_something_better_replaces_what_is_known() -> None:
    known = BestKnown(scenarios={"one": best()})
    worse, better = best(policy="random", goodput=0.85), best(policy="random", goodput=0.95)
    assert known.updated({"one": worse}).scenarios["one"].policy == "least-ttft"
    assert known.updated({"one": better}).scenarios["one"].policy == "random"
    assert known.updated({"two": worse}).scenarios.keys() == {"one", "two"}


def test_the_same_policy_anew_another_version_and_another_content_replace_it_too() -> None:
    known = BestKnown(scenarios={"one": best()})
    others = (best(policy="random", version=2, goodput=0.81), best(policy="random", content="b"))
    for found in (best(goodput=0.85), *others):
        assert known.updated({"one": found}).scenarios["one"] == found


def test_another_version_is_unknown_and_a_changed_scenario_is_refused() -> None:
    known = BestKnown(scenarios={"one": best()})
    assert known.of("one", 1, "aa") == best()
    assert known.of("one", 2, "bb") is None and known.of("two", 1, "aa") is None
    with pytest.raises(ValueError, match=r"scenario one is not what it was when .* raise its version to 2"):
        known.of("one", 1, "bb")


def test_the_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    assert best_known.read(path) == BestKnown()
    known = BestKnown(scenarios={"one": best(heuristic=("card (tuned)", "card@mixed-bursty"))})
    assert best_known.write(known, path) == path
    assert best_known.read(path) == known
    assert path.read_text().startswith("# The best policy known in each scenario")


def test_a_file_of_another_version_or_with_other_fields_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("schema_version: 2\n")
    with pytest.raises(ValueError, match=r"schema_version is 2; this version reads 1"):
        best_known.read(path)
    path.write_text("scenarios: {one: {version: 0}}\n")
    with pytest.raises(ValueError, match=r"scenarios\.one\.version is 0; it must be greater than or equal to 1"):
        best_known.read(path)


def test_the_best_known_of_every_shipped_scenario_is_that_of_its_version_and_content() -> None:
    known = best_known.read()
    scenarios = [config.load(name) for name in roster.load().scenarios]
    lacking = [each.name for each in scenarios if not known.knows(each.name, each.version, each.content)]
    assert lacking == [], "run `disaggroute experiment suite --update-best`, after raising the version of what changed"
    assert {each.name for each in scenarios} == set(config.names()) == set(known.scenarios)
