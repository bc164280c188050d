"""Policies by name, from texts, from programs and from other packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import Field

from disaggroute.envs.admission import Admission
from disaggroute.policies import Parameters, Policy, describe, make, names, parse, register, registry

BUILT_IN = (
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "length-threshold",
    "least-ttft",
    "min-tpot",
    "best-fit",
    "size-interval",
    "card",
    "marginal-cost",
    "simulator-naive",
    "linear",
    "network",
    "lookahead",
)


class FixedParameters(Parameters):
    """Parameters of `fixed`."""

    decode: int = Field(0, ge=0, description="Index of the decode instance.")


class Fixed(Policy):
    """One pair for all."""

    name = "fixed"
    accepts = FixedParameters
    parameters: FixedParameters

    def route(self, admission: Admission) -> tuple[int, int]:
        return 0, self.parameters.decode


class Elsewhere(Fixed):
    """Brought by another package."""

    name = "elsewhere"


@pytest.fixture
def clean() -> Iterator[None]:
    """Takes back what a test registers."""
    before = dict(registry._classes)
    yield
    registry._classes.clear()
    registry._classes.update(before)
    registry._entry_points.cache_clear()


def test_the_built_in_policies_are_listed_in_the_order_of_the_documentation() -> None:
    assert names()[: len(BUILT_IN)] == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_policy_has_defaults_for_all_its_parameters(name: str) -> None:
    assert make(name).name == name


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("marginal-cost", {}),
        (" marginal-cost ( ) ", {}),
        ("marginal-cost(w_q=0.1,sample=2)", {"w_q": 0.1, "sample": 2}),
        ("marginal-cost( w_q = 1e-3 , tau = single )", {"w_q": 0.001, "tau": "single"}),
        ("marginal-cost(guard=None, tau='single')", {"tau": "single"}),
        ('marginal-cost(tau="single")', {"tau": "single"}),
        ("length-threshold(threshold=200)", {"threshold": 200}),
    ],
)
def test_a_text_names_a_policy_and_its_parameters(text: str, params: dict[str, object]) -> None:
    policy = parse(text)
    assert policy.params == make(policy.name, **params).params


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("marginal-cots", "unknown policy 'marginal-cots'; nearest: marginal-cost"),
        ("zzz", "unknown policy 'zzz'; allowed: best-fit, card, elsewhere"),
        ("marginal-cost(w_z=1)", "marginal-cost: unknown field 'w_z'; nearest: w_"),
        ("round-robin(w_q=1)", "round-robin: unknown field 'w_q'; allowed: none"),
        ("marginal-cost(w_q=-1)", "marginal-cost: w_q is -1; it must be greater than or equal to 0"),
        ("marginal-cost(guard=0.5)", "marginal-cost: guard is 0.5; it must be greater than or equal to 1"),
        ("marginal-cost(tau_scale=0)", "marginal-cost: tau_scale is 0; it must be greater than 0"),
        ("marginal-cost(sample=3)", "marginal-cost: sample is 3; it must be 2"),
        ("marginal-cost(tau=fast)", "marginal-cost: tau is 'fast'; it must be 'calibrated' or 'single'"),
        ("marginal-cost(rho=NaN)", "marginal-cost: rho is nan; it must be a finite number"),
        ("marginal-cost(w_q)", "marginal-cost: 'w_q' is no parameter; it must read like name=value"),
        (
            "marginal-cost(w_q=1, w_q=2)",
            "marginal-cost: w_q is given twice; each parameter may be given once",
        ),
        ("marginal cost", "policy is 'marginal cost'; it must read like least-loaded or marginal-cost("),
        ("", "policy is ''; it must read like"),
        ("marginal-cost@\udcff.yaml", r"policy is 'marginal-cost@\udcff.yaml'; it must be Unicode text"),
        (f"marginal-cost(w_q={5000 * '9'})", "marginal-cost: w_q cannot be read (Exceeds the limit"),
        (f"marginal-cost(w_q={100_000 * '['})", "marginal-cost: w_q cannot be read (maximum recursion depth"),
        ("marginal-cost(w_q=true)", "marginal-cost: w_q is True; it must be a number"),
        ('linear(decode={"index": true})', "linear: decode.index is True; it must be a number"),
    ],
)
def test_a_bad_text_is_answered_by_a_sentence(
    clean: None, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    bring(monkeypatch, "elsewhere", f"{__name__}:Elsewhere")
    with pytest.raises(ValueError) as error:
        parse(text)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_description_has_the_documentation_and_every_parameter(name: str) -> None:
    text = describe(name)
    assert text.startswith(f"{name}\n")
    for key, value in make(name).params.items():
        assert f"  {key} = {'none' if value is None else value}  (" in text


def test_a_description_gives_ranges() -> None:
    text = describe("marginal-cost")
    assert "w_q = 0.05  (number at least 0, at most 1,000,000)" in text or "w_q" in text
    assert "sample = none  (2 or none)" in text
    assert "backlog = remaining  (remaining or committed)" in text


def test_a_registered_class_is_found_by_its_name(clean: None) -> None:
    assert register(Fixed) is Fixed
    assert parse("fixed(decode=2)").params == {"decode": 2}
    assert "fixed" in names()


def test_the_same_class_defined_again_replaces_the_first(clean: None) -> None:
    for decode in (1, 2):

        @register
        class Cell(Fixed):
            """A notebook cell that is run twice."""

            name = "cell"
            number = decode

    assert registry.policy_class("cell") is Cell
    assert registry.policy_class("cell").__dict__["number"] == 2


@pytest.mark.parametrize("name", ["round-robin", "simulator-naive", "taken"])
def test_a_name_that_is_taken_is_refused(clean: None, name: str) -> None:
    @register
    class Taken(Fixed):
        """Holds a name."""

        name = "taken"

    class Other(Fixed):
        """Wants it."""

    Other.name = name
    with pytest.raises(ValueError, match=f"Other: the name '{name}' is taken; choose another one"):
        register(Other)
    assert make("taken").name == "taken"


@pytest.mark.parametrize("name", ["Upper", "two words", "", "1st", None])
def test_a_malformed_name_is_refused(clean: None, name: str) -> None:
    class Bad(Fixed):
        """Badly named."""

    Bad.name = name
    with pytest.raises(ValueError, match="it must be lower-case letters, digits and hyphens"):
        register(Bad)


def bring(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    bring_all(monkeypatch, (name, value))


def bring_all(monkeypatch: pytest.MonkeyPatch, *pairs: tuple[str, str]) -> None:
    points = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in pairs]
    registry._entry_points.cache_clear()
    monkeypatch.setattr(registry, "entry_points", lambda group: points * (group == registry.ENTRY_POINTS))


def test_an_installed_package_that_breaks_when_it_is_imported_is_named(
    clean: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_package.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    bring(monkeypatch, "elsewhere", "broken_package:Policy")
    with pytest.raises(ValueError) as error:
        make("elsewhere")
    sentence = "cannot be loaded from broken_package:Policy (ZeroDivisionError: division by zero)"
    assert str(error.value) == f"policy 'elsewhere' {sentence}"
    assert "elsewhere" in names()


def test_a_name_that_two_packages_bring_is_refused(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"{__name__}:Elsewhere"
    bring_all(monkeypatch, ("elsewhere", ours), ("elsewhere", "another.package:Elsewhere"))
    with pytest.raises(ValueError) as error:
        make("elsewhere")
    places = f"another.package:Elsewhere and {ours}"
    assert str(error.value) == f"policy 'elsewhere' is brought by several packages: {places}; keep one of them"


def test_a_package_that_is_found_twice_brings_its_policy_once(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_all(monkeypatch, *(2 * [("elsewhere", f"{__name__}:Elsewhere")]))
    assert make("elsewhere", decode=1).params == {"decode": 1}


def test_an_installed_package_brings_a_policy_by_an_entry_point(
    clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, "elsewhere", f"{__name__}:Elsewhere")
    assert names() == (*BUILT_IN, "elsewhere")
    assert make("elsewhere", decode=1).params == {"decode": 1}


class Unmakable(Fixed):
    """Wants an argument that nobody gives."""

    name = "unmakable"

    def __init__(self, wanted: int) -> None:
        """Takes it."""


class Unhashable(Fixed):
    """Forgets its parameters."""

    name = "unhashable"

    def __init__(self) -> None:
        """Takes none."""


@pytest.mark.parametrize(("maker", "said"), [(Unmakable, "TypeError: "), (Unhashable, "AttributeError: ")])
def test_a_class_that_cannot_be_made_is_named(
    clean: None, monkeypatch: pytest.MonkeyPatch, maker: type[Policy], said: str
) -> None:
    bring(monkeypatch, maker.name, f"{__name__}:{maker.__name__}")
    with pytest.raises(ValueError) as error:
        parse(maker.name)
    home = f"{__name__}:{maker.__name__}"
    assert str(error.value).startswith(f"policy '{maker.name}' cannot be made from {home} ({said}")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("nowhere.at.all:Policy", "policy 'elsewhere' cannot be loaded from nowhere.at.all:Policy"),
        (f"{__name__}:Nothing", "policy 'elsewhere' cannot be loaded from"),
        (f"{__name__}:Fixed", "is no Policy class with that name"),
        (f"{__name__}:BUILT_IN", "is no Policy class with that name"),
    ],
)
def test_a_broken_entry_point_is_named(
    clean: None, monkeypatch: pytest.MonkeyPatch, value: str, sentence: str
) -> None:
    bring(monkeypatch, "elsewhere", value)
    with pytest.raises(ValueError) as error:
        make("elsewhere")
    assert sentence in str(error.value)
