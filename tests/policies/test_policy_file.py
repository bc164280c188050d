"""Policy files: what `NAME@FILE` reads, refuses and says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import disaggroute
from disaggroute import policies
from disaggroute.envs import catalog, features
from disaggroute.policies import policy_file, registry
from disaggroute.policies.policy_file import PolicyFile

SHIPPED = [(name, file) for name in registry.names() for file in policy_file.shipped(name)]

GOOD: dict[str, Any] = {
    "schema_version": policy_file.SCHEMA_VERSION,
    "policy": "marginal-cost",
    "features_version": features.VERSION,
    "params": {"w_q": 0.25, "sample": 2},
    "provenance": {"command": "by hand"},
}


def write(path: Path, **changes: Any) -> str:
    """A good file but for these fields; None leaves one out."""
    data = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(data))
    return str(path)


def refusal(text: str) -> str:
    with pytest.raises(ValueError) as error:
        policies.parse(text)
    return str(error.value)


def test_a_file_gives_the_parameters(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml")
    policy = policies.parse(f"marginal-cost@{path}")
    assert policy.params == policies.make("marginal-cost", w_q=0.25, sample=2).params


def test_the_hash_is_that_of_the_parameters_and_knows_no_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml")
    assert policies.parse(f"marginal-cost@{path}").hash == policies.make("marginal-cost", w_q=0.25, sample=2).hash


def test_parameters_in_brackets_take_the_place_of_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml")
    policy = policies.parse(f"marginal-cost@{path}(w_q=0.5)")
    assert (policy.params["w_q"], policy.params["sample"]) == (0.5, 2)


@pytest.mark.parametrize("name", ["mine.yaml", "two words.yml", 'strange, (1) "x".yaml'])
@pytest.mark.parametrize("inside", ["", "(w_q=0.5)", "(sample=null)"])
def test_the_policys_text_names_the_file_and_reads_back(tmp_path: Path, name: str, inside: str) -> None:
    path = write(tmp_path / name)
    quoted = str(policies.policy_text.PolicyText("marginal-cost", path))
    policy = policies.parse(quoted + inside)
    assert str(policy) == quoted + inside
    assert policies.parse(str(policy)).hash == policy.hash


def test_a_policy_without_a_file_says_nothing_of_one() -> None:
    assert str(policies.parse("marginal-cost(w_q=0.5)")) == "marginal-cost(w_q=0.5)"


def test_what_a_policy_writes_it_reads(tmp_path: Path) -> None:
    policy = policies.parse("marginal-cost(w_q=1e-5, backlog=committed)")
    (tmp_path / "mine.yaml").write_text(PolicyFile.of(policy, {"command": "ré"}).yaml(), encoding="utf-8")
    again = policies.parse(f"marginal-cost@{tmp_path / 'mine.yaml'}")
    assert again.params == policy.params
    assert policy_file.load("marginal-cost", str(tmp_path / "mine.yaml")).provenance == {"command": "ré"}


def test_a_written_file_holds_all_parameters_so_that_other_defaults_change_nothing() -> None:
    policy = policies.make("marginal-cost")
    assert PolicyFile.of(policy, {}).params == policy.params


@pytest.mark.parametrize(("name", "file"), SHIPPED)
def test_a_shipped_file_is_read_by_its_short_name_and_says_how_it_was_made(name: str, file: str) -> None:
    assert policies.parse(f"{name}@{file}").name == name
    provenance = policy_file.load(name, file).provenance
    assert provenance["command"].startswith((f"disaggroute tune {name}", "disaggroute train "))
    assert provenance["scenario"] if "scenario" in provenance else provenance["training"]["scenarios"]


@pytest.mark.parametrize(
    ("name", "file"),
    [("linear", "shipped"), ("network", "shipped"), ("network", "mixed-bursty"), ("network", "mixed-bursty-a40")],
)
def test_what_was_learned_ships_with_its_card(name: str, file: str) -> None:
    assert file in policy_file.shipped(name)
    card = (Path(disaggroute.__file__).parent / "configs/policies" / name / f"{file}.md").read_text(encoding="utf-8")
    assert policy_file.load(name, file).provenance["command"] in card
    assert "## Where it fails" in card


def test_a_file_that_another_package_registers_has_a_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_registered", {})
    catalog.register("policies", "marginal-cost/mine", write(tmp_path / "mine.yaml"))
    assert "mine" in policy_file.shipped("marginal-cost")
    assert policies.parse("marginal-cost@mine").params["w_q"] == 0.25


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"policy": "least-loaded"}, "policy is 'least-loaded', asked for as marginal-cost@"),
        ({"schema_version": 2}, "schema_version is 2; this version reads 1"),
        ({"schema_version": None}, "schema_version is missing; it is required"),
        ({"features_version": 99}, "features_version is 99, but the features have version"),
        ({"features_version": None}, "features_version is missing; it is required"),
        ({"params": {"w_z": 1}}, "marginal-cost: unknown field 'w_z'; nearest: w_"),
        ({"params": {"w_q": -1}}, "marginal-cost: w_q is -1; it must be greater than or equal to 0"),
        ({"params": [1]}, "params is [1]; it must be a valid mapping"),
        ({"extra": 1}, "unknown field 'extra'"),
    ],
)
def test_a_bad_file_is_answered_by_a_sentence_that_names_it(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = write(tmp_path / "mine.yaml", **changes)
    said = refusal(f"marginal-cost@{path}")
    assert said.startswith(f"{path}: ") and sentence in said


def test_a_bad_parameter_in_brackets_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml")
    assert refusal(f"marginal-cost@{path}(w_q=-1)").startswith("marginal-cost: w_q is -1; it must be")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("a: [\n", "is not valid YAML"), ("- 1\n", "it must be a mapping of fields"), ("\xff", "is not UTF-8 text")],
)
def test_a_file_that_is_no_yaml_mapping_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "mine.yaml").write_text(content, encoding="latin-1")
    assert sentence in refusal(f"marginal-cost@{tmp_path / 'mine.yaml'}")


def test_a_missing_file_is_answered_with_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(f"round-robin@{tmp_path}/none.yaml") == (
        f"round-robin: there is no policy file {tmp_path}/none.yaml; shipped for round-robin: none"
    )
    monkeypatch.setattr(catalog, "_registered", {})
    catalog.register("policies", "round-robin/mine", write(tmp_path / "mine.yaml"))
    assert refusal("round-robin@none.yaml").endswith("shipped for round-robin: mine")
    assert refusal("round-robin@mime") == (
        "round-robin: unknown policy file 'mime'; nearest: mine; a path ends in .yaml"
    )


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    assert "the file cannot be read" in refusal(f"round-robin@{tmp_path / 'x.yaml'}")


def test_an_unknown_policy_is_told_before_its_file_is_looked_for() -> None:
    assert refusal("round-robbin@none.yaml") == "unknown policy 'round-robbin'; nearest: round-robin"
