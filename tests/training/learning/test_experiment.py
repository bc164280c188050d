"""A whole training: several seeds, one after the other, and the choice among all of them on validation seeds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.policies import registry
from disaggroute.training.evaluation import evaluate
from disaggroute.training.learning import experiment
from disaggroute.training.learning.choose import Choice
from disaggroute.training.learning.experiment import default_folder, train

from .tasks import NARROW, configured, content

SLOWER = {**NARROW, "name": "slower", "rate": 20, "weight": 3, "baseline": "round-robin"}
CHANGES: dict[str, Any] = {"scenarios": [NARROW, SLOWER], "budget": 2, "validation": {"baselines": ["linear"]}}


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    """Two training seeds on two scenarios."""
    out = tmp_path_factory.mktemp("train") / "r"
    return train(configured(**CHANGES), (0, 1), out=out, command="disaggroute train it", workers=1)


def rows(choice: Choice) -> list[dict[str, str]]:
    with (choice.file.parent / "validation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_chosen_one_has_the_largest_weighted_goodput_on_validation_seeds(choice: Choice) -> None:
    def score(policy: str) -> float:
        own = {row["scenario"]: float(row["goodput"]) for row in rows(choice) if row["policy"] == policy}
        return (own[NARROW["name"]] + 3 * own["slower"]) / 4  # type: ignore[index]

    trained = {row["policy"] for row in rows(choice) if row["training_seed"]}
    assert {row["policy"] for row in rows(choice) if row["chosen"] == "1"} == {choice.chosen.label}
    assert score(choice.chosen.label) == max(score(policy) for policy in trained)


def test_the_trained_file_is_the_chosen_policy_and_says_how_it_was_made(choice: Choice) -> None:
    assert registry.parse(f"linear@{choice.file}").hash == registry.parse(choice.chosen.text).hash
    made = yaml.safe_load(choice.file.read_text())["provenance"]
    assert made["command"] == "disaggroute train it"
    assert made["training"]["budget"] == 2 and made["training_seeds"] == [0, 1]
    assert made["chosen"] == choice.chosen.label
    assert made["validation"]["seeds"] == "10000 to 10003"


def test_every_scenario_is_compared_with_its_own_baseline(choice: Choice) -> None:
    assert {(row["scenario"], row["baseline"]) for row in rows(choice)} == {
        (NARROW["name"], "linear"),
        ("slower", "round-robin"),
    }
    for row in rows(choice):
        assert (row["difference"] == "") == (row["policy"] == row["baseline"])


def test_goodputs_and_differences_are_those_of_an_evaluation(choice: Choice, tmp_path: Path) -> None:
    scenario = configured(**CHANGES).scenarios[1].plain
    longer = scenario.make(**(scenario.model_dump() | {"duration_s": 30}))
    policies = ("round-robin", choice.chosen.text)
    runs = evaluate(longer, policies, range(10_000, 10_004), out=tmp_path / "r", records="none", workers=1).runs
    own, first = ([run.summary.goodput for run in runs[policy]] for policy in reversed(policies))
    row = next(r for r in rows(choice) if r["scenario"] == "slower" and r["policy"] == choice.chosen.label)
    assert float(row["goodput"]) == pytest.approx(sum(own) / 4)
    assert float(row["difference"]) == pytest.approx((sum(own) - sum(first)) / 4)


def test_the_card_says_how_it_was_made_how_good_it_is_and_where_it_fails(choice: Choice) -> None:
    text = (choice.file.parent / "card.md").read_text()
    for words in (
        "disaggroute train it",
        f"Chosen: {choice.chosen.label}",
        "Training seeds: 0, 1",
        "slower: chat on 1p2d-one-narrow at 20 requests/s, 20 s, predictor bucket, weight 3",
        "| baseline | `linear` | `round-robin` |",
        "| `round-robin` | – |",
        "best of training seed 0",
        "best of training seed 1",
        "| ceiling | ",
        "## Where it fails",
    ):
        assert words in text
    assert text.count(", chosen |") == 1


def test_each_training_seed_has_its_curve(choice: Choice) -> None:
    for seed in (0, 1):
        folder = choice.file.parent / f"seed-{seed}"
        assert (folder / "learning.csv").read_text().count("\n") == 3
        assert (folder / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_more_training_seeds_go_on_from_fewer(choice: Choice, tmp_path: Path) -> None:
    train(configured(**CHANGES), (0,), out=tmp_path / "r", command="disaggroute train it", workers=1)
    before = content(tmp_path / "r" / "seed-0")
    train(configured(**CHANGES), (0, 1), out=tmp_path / "r", command="disaggroute train it", workers=1)
    assert content(tmp_path / "r" / "seed-0") == before
    assert content(tmp_path / "r") == content(choice.file.parent)


def test_the_folder_of_another_configuration_is_refused(choice: Choice) -> None:
    with pytest.raises(ValueError, match=r"runs of another configuration \(other budget\); name another folder"):
        train(configured(**CHANGES | {"budget": 3}), (0,), out=choice.file.parent, workers=1)


def test_a_candidate_equal_to_a_baseline_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"budget": 1, "parameters": {"finalists": 9, "samples": 0}, "validation": {"baselines": ["linear"]}}
    choice = train(configured(**changes), (0,), out=tmp_path / "r", workers=1)
    assert [entrant.found for entrant in choice.candidates] == ["mean after 1 generations", "mean after 0 generations"]
    assert len(choice.tested[0].evaluation.labels) == 2
    zero = next(row for row in rows(choice) if row["found"] == "mean after 0 generations")
    assert zero["goodput"] == next(row for row in rows(choice) if row["policy"] == "linear")["goodput"]


def test_nothing_exists_before_all_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown policy 'nobody'"):
        train(configured(validation={"baselines": ["nobody"]}), (0,), out=tmp_path / "r", workers=1)
    assert not (tmp_path / "r").exists()


def test_another_configuration_gets_another_default_folder() -> None:
    assert default_folder(configured()) != default_folder(configured(budget=3))
    assert default_folder(configured(name="a/b c")).name.startswith("train-a-b-c-")


def test_progress_is_told_from_nothing_to_all(tmp_path: Path) -> None:
    from contextlib import contextmanager

    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def bar(what: str, unit: str) -> Any:
        yield lambda done, total: told.setdefault(f"{what}, {unit}", []).append((done, total))

    experiment.train(configured(budget=2), (7,), out=tmp_path / "r", workers=1, bar=bar)
    assert told["training seed 7, generations"] == [(0, 2), (1, 2), (2, 2)]
    first, *_, last = told["validating, runs"]
    assert first[0] == 0 and last[0] == last[1] == first[1]
