from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from disaggroute.envs import catalog


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    height: int
    inner: Inner = Inner()
    many: list[Inner] = []
    named: str | Inner | None = None
    share: float = 0.5
    shares: list[float] = []
    by_name: dict[str, float] = {}
    on: bool = False
    row: tuple[int, ...] = Field((1,), min_length=1)


LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (k, k, b", ".join(10 * [b"*a%d" % (k - 1)])) for k in range(1, 10)
)
"""Ten short lines that stand for ten thousand million values."""


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


# --- files that other packages bring ------------------------------------------------------------------------------

FAMILY = """\
name: {name}
prompt: {{parts: [{{median: 50, sigma: 1}}]}}
output: {{parts: [{{median: 20, sigma: 1}}]}}
tight_share: 0.5
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, which Python and its metadata find."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    catalog._brought.cache_clear()
    yield folder
    catalog._brought.cache_clear()
    for name in [name for name in sys.modules if name.startswith("traffic_of_")]:
        del sys.modules[name]


def install(site: Path, package: str, points: str, **files: str) -> Path:
    """Installs a distribution with this package, its YAML files and its entry points; returns its folder."""
    folder = site / package / "yaml"
    folder.mkdir(parents=True)
    (site / package / "__init__.py").write_text("")
    (folder / "README.txt").write_text("not a workload")
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)
    note = site / f"{package}-1.0.dist-info"
    note.mkdir()
    (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (note / "entry_points.txt").write_text(points)
    return folder


def test_an_installed_package_brings_workloads_and_profiles_by_name(site: Path) -> None:
    from disaggroute.envs import profiles, workloads

    points = "[disaggroute.workloads]\nmine = traffic_of_one.yaml\n[disaggroute.profiles]\nmine = traffic_of_one.more\n"
    folder = install(site, "traffic_of_one", points, errands=FAMILY.format(name="errands"))
    (folder / "both.yaml").write_text("name: both\nmix: {errands: 1, chat: 3}\n")
    more = folder.parent / "more"
    more.mkdir()
    shipped = (catalog._folder("profiles") / "a40-qwen2.5-3b.yaml").read_text()
    (more / "mine-3b.yaml").write_text(shipped.replace("name: a40-qwen2.5-3b", "name: mine-3b"))

    assert {"errands", "both", "chat"} <= set(workloads.names()) and "mine-3b" in profiles.names()
    assert "README" not in workloads.names() and "errands" not in profiles.names()
    assert workloads.make("both").shares == (0.25, 0.75)
    assert profiles.load("mine-3b").slo_targets == profiles.load("a40-qwen2.5-3b").slo_targets
    trace = workloads.make("errands").generate(rate=5, duration_s=20, seed=0, profile="mine-3b")
    assert trace.families == ("errands",) and len(trace) > 50


def test_what_ships_is_not_replaced(site: Path) -> None:
    points = "[disaggroute.workloads]\nmine = traffic_of_two.yaml\n"
    install(site, "traffic_of_two", points, chat=FAMILY.format(name="chat"))
    assert catalog.names("workloads").count("chat") == 1
    assert catalog.read("workloads", "chat")["arrivals"] == {"process": "gamma", "cv": 1.1}


def test_a_name_that_a_package_brings_is_not_registered_again(site: Path) -> None:
    points = "[disaggroute.workloads]\nmine = traffic_of_three.yaml\n"
    install(site, "traffic_of_three", points, errands=FAMILY.format(name="errands"))
    with pytest.raises(ValueError, match="workloads: the name 'errands' is taken"):
        catalog.register("workloads", "errands", "x.yaml")


def test_a_name_that_two_packages_bring_is_refused_with_both_places(site: Path) -> None:
    for package in ("traffic_of_four", "traffic_of_five"):
        points = f"[disaggroute.workloads]\nmine = {package}.yaml\n"
        install(site, package, points, errands=FAMILY.format(name="errands"))
    with pytest.raises(ValueError, match="'errands' is brought by several packages; give the path: ") as caught:
        catalog.read("workloads", "errands")
    assert all(f"traffic_of_{k}/yaml/errands.yaml" in str(caught.value) for k in ("four", "five"))


@pytest.mark.parametrize("value", ["traffic_of_nobody", "traffic_of_six.yaml.nothing", "traffic_of_six.yaml:it"])
def test_a_package_that_cannot_be_read_is_named_when_a_name_is_not_found(site: Path, value: str) -> None:
    points = f"[disaggroute.workloads]\nbroken = {value}\nmine = traffic_of_six.yaml\n"
    install(site, "traffic_of_six", points, errands=FAMILY.format(name="errands"))
    assert catalog.read("workloads", "errands")["name"] == "errands"
    assert "chat" in catalog.names("workloads")
    with pytest.raises(ValueError, match="unknown workload 'errand'; nearest: errands") as caught:
        catalog.read("workloads", "errand")
    assert f"; the package {value} of the entry point 'broken' cannot be read (" in str(caught.value)


def test_a_package_that_breaks_when_it_is_imported_hides_no_other(site: Path) -> None:
    points = "[disaggroute.workloads]\nbroken = traffic_of_eight.broken\nmine = traffic_of_eight.yaml\n"
    folder = install(site, "traffic_of_eight", points, errands=FAMILY.format(name="errands"))
    (folder.parent / "broken.py").write_text("1 / 0\n")
    assert catalog.read("workloads", "errands")["name"] == "errands"
    with pytest.raises(ValueError, match=r"cannot be read \(ZeroDivisionError: division by zero\)"):
        catalog.read("workloads", "errand")


def test_the_command_line_knows_what_a_package_brings(site: Path) -> None:
    from typer.testing import CliRunner

    from disaggroute.__main__ import app

    points = "[disaggroute.workloads]\nmine = traffic_of_seven.yaml\n"
    install(site, "traffic_of_seven", points, errands=FAMILY.format(name="errands"))
    assert "errands" in CliRunner().invoke(app, ["list", "workloads"]).stdout.split()
    assert "workloads/errands" in CliRunner().invoke(app, ["list", "configs"]).stdout.split()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: the file cannot be read \(No such file"):
        catalog.read("profiles", tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a: 1\nb: [1\n", r"bad\.yaml, line 3: is not valid YAML"),
        (b"- 1\n", r"bad\.yaml: holds a list; it must be a mapping of fields"),
        (b"", r"bad\.yaml: holds nothing; it must be a mapping of fields"),
        (b"a: 2024-13-45\n", r"bad\.yaml: is not valid YAML \(month must be in 1\.\.12\)"),
        (b"a: " + 5000 * b"9", r"bad\.yaml: is not valid YAML \(Exceeds the limit"),
        (b"a: " + 100_000 * b"[" + 100_000 * b"]", r"bad\.yaml.*: is not valid YAML \(.*nest"),
        (LAUGHS, r"bad\.yaml: is not valid YAML \(its aliases stand for more than 1,000,000 values\)"),
        (b"a: &a {b: *a}\n", r"bad\.yaml: is not valid YAML \(its aliases stand for more"),
        (b"a: \xff\n", r"bad\.yaml: is not UTF-8 text \(byte 3\)"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        catalog.read("profiles", tmp_path / "bad.yaml")


def test_a_file_that_may_never_end_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(ValueError, match=rf"{name}\.yaml: is no regular file; copy what it gives into one"):
            catalog.read("profiles", tmp_path / f"{name}.yaml")


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a\\x00b\.yaml' holds a null character; no file has such a name"):
        catalog.read("profiles", "a\0b.yaml")


@pytest.mark.parametrize("name", ["a", "ä [b] $x^ @,", 100 * "a"])
def test_a_name_is_what_can_be_printed(name: str) -> None:
    assert catalog.check_name(name) == name


@pytest.mark.parametrize("name", ["", 101 * "a", "a\nb", "a\x1b[31m", "\0"])
def test_a_name_that_cannot_be_printed_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 100 printable characters"):
        catalog.check_name(name)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "x: height is missing; it is required"),
        ({"height": True}, "x: height is True; it must be a number"),
        ({"height": 1, "share": False}, "x: share is False; it must be a number"),
        ({"height": 1, "inner": {"width": True}}, r"x: inner\.width is True; it must be a number"),
        ({"height": 1, "many": [{}, {"width": True}]}, r"x: many\.1\.width is True; it must be a number"),
        ({"height": 1, "shares": (0.5, True)}, r"x: shares\.1 is True; it must be a number"),
        ({"height": 1, "by_name": {"a": True}}, r"x: by_name\.a is True; it must be a number"),
        ({"height": 1, "named": "\udcff.csv"}, r"x: named is '\\udcff\.csv'; it must be Unicode text"),
        ({"height": 1, "named": 5}, "x: named is 5; it must be text or a mapping"),
        ({"height": "tall"}, "x: height is 'tall'; it must be a valid integer$"),
        ({"height": 1, "on": "maybe"}, "x: on is 'maybe'; it must be a valid boolean$"),
        ({"height": 1, "inner": 3}, "x: inner is 3; it must be a valid mapping$"),
        ({"height": 1, "row": 3}, "x: row is 3; it must be a valid list$"),
        ({"height": 1, "row": ()}, r"x: row is \(\); it must have at least 1 item$"),
        ({"height": 1, "by_name": 3}, "x: by_name is 3; it must be a valid mapping$"),
        ({"height": 1, "heigth": 2}, "x: unknown field 'heigth'; nearest: height"),
        ({"height": 1, "inner": {"widht": 2}}, "x: unknown field of inner 'widht'; nearest: width"),
        ({"height": 1, "many": [{"widht": 2}]}, r"x: unknown field of many\.0 'widht'; nearest: width"),
        ({"height": 1, "named": {"widht": 2}}, "x: unknown field of named 'widht'; nearest: width"),
        ({"height": 1, "named": {"width": "w"}}, r"x: named\.width is 'w'; it must be a valid integer"),
    ],
)
def test_a_bad_field_is_one_sentence(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        catalog.validate(Outer, data, "x")
    assert "\n" not in str(caught.value)


def test_true_is_no_number_but_where_it_is_asked_for() -> None:
    made = catalog.validate(Outer, {"height": 1, "on": True, "shares": [1, 0], "named": "日本"}, "x")
    assert made.on is True and made.shares == [1.0, 0.0]


def test_merging_goes_into_mappings_and_replaces_the_rest() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 3}
    assert catalog.merge(base, {"a": {"c": [9]}, "e": 4}) == {"a": {"b": 1, "c": [9]}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 3}


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["cat"]
    lives: int = Field(9, le=9)


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]
    tricks: list[str] = Field(min_length=1)


class House(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def test_fields_of_a_union_are_named_as_they_are_written() -> None:
    def said(**pet: Any) -> str:
        with pytest.raises(ValueError) as refused:
            catalog.validate(House, {"pet": pet}, "house")
        return str(refused.value)

    assert said(kind="cat", lives=10) == "house: pet.lives is 10; it must be less than or equal to 9"
    assert said(kind="cat", trick=[]) == "house: unknown field of pet 'trick'; allowed: kind, lives"
    assert said(kind="dog", tricks=[]) == "house: pet.tricks is []; it must have at least 1 item"
    assert said(kind="dog") == "house: pet.tricks is missing; it is required"
