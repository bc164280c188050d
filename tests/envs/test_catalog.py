from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from disaggroute.envs import catalog


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    height: int
    inner: Inner = Inner()
    many: list[Inner] = []


@pytest.mark.parametrize("kind", ["profiles", "workloads", "clusters"])
def test_every_shipped_file_is_listed_and_read(kind: str) -> None:
    assert catalog.names(kind)
    for name in catalog.names(kind):
        assert catalog.read(kind, name)["name"] == name


def test_a_file_in_a_folder_of_its_own_has_the_folder_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "one.yaml").write_text("name: one\n")
    (tmp_path / "two.yaml").write_text("name: two\n")
    monkeypatch.setattr(catalog, "_folder", lambda _: tmp_path)
    assert catalog.names("policies") == ("inner/one", "two")
    assert catalog.read("policies", "inner/one") == {"name": "one"}


def test_a_kind_of_which_nothing_ships_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_folder", lambda _: tmp_path / "missing")
    assert catalog.names("training") == ()


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown profile 'a40-qwen2\.5-7b'; nearest: a40-qwen2\.5-3b"):
        catalog.read("profiles", "a40-qwen2.5-7b")


def test_an_unknown_name_with_nothing_near_is_answered_with_all() -> None:
    assert catalog.unknown("thing", "zzzz", ["alpha", "beta"]) == "unknown thing 'zzzz'; allowed: alpha, beta"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of configuration 'profile'; nearest: profiles"):
        catalog.names("profile")


def test_a_path_is_read_like_a_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    assert catalog.read("clusters", tmp_path / "mine.yaml") == {"name": "mine"}


def test_a_registered_file_is_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_registered", {})
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    catalog.register("clusters", "mine", tmp_path / "mine.yaml")
    assert "mine" in catalog.names("clusters")
    assert catalog.read("clusters", "mine") == {"name": "mine"}


def test_a_taken_name_is_not_registered_again() -> None:
    with pytest.raises(ValueError, match="clusters: the name '2p4d-a40' is taken"):
        catalog.register("clusters", "2p4d-a40", "x.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: cannot be read as a profiles file \(No such file"):
        catalog.read("profiles", tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: 1\nb: [1\n", r"bad\.yaml, line 3: is not valid YAML"),
        (b"- 1\n", r"bad\.yaml: holds a list; it must be a mapping of fields"),
        (b"a: \xff\n", r"bad\.yaml: is not UTF-8 text \(byte 3\)"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        catalog.read("profiles", tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "x: height is missing; it is required"),
        ({"height": "tall"}, "x: height is 'tall'; it must be a valid integer"),
        ({"height": 1, "heigth": 2}, "x: unknown field 'heigth'; nearest: height"),
        ({"height": 1, "inner": {"widht": 2}}, "x: unknown field of inner 'widht'; nearest: width"),
        ({"height": 1, "many": [{"widht": 2}]}, r"x: unknown field of many\.0 'widht'; nearest: width"),
    ],
)
def test_a_bad_field_is_one_sentence(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        catalog.validate(Outer, data, "x")
    assert "\n" not in str(caught.value)


def test_merging_goes_into_mappings_and_replaces_the_rest() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 3}
    assert catalog.merge(base, {"a": {"c": [9]}, "e": 4}) == {"a": {"b": 1, "c": [9]}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 3}
