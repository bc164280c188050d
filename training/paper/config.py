"""Experiment files: conditions, figures, findings and the rules of their verdicts (docs/paper.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from ...envs import catalog
from ..matrix.config import Condition as MatrixCondition
from ..matrix.config import Name
from ..seeds import VALIDATION
from .quantities import QUANTITIES

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

MARGINS = ("at_least", "within", "not_below")
"""The rules of which a comparison has one."""


def _check_quantity(name: str) -> str:
    if name not in QUANTITIES:
        raise ValueError(catalog.unknown("quantity", name, QUANTITIES))
    return name


QuantityName = Annotated[str, AfterValidator(_check_quantity)]


class Condition(MatrixCondition):
    """A scenario by name, and how its rate is found.

    Attributes:
        target: share of the ceiling that round robin reaches at its saturation rate; None: the usual one.
        rate_of: name of the condition whose rate it has; empty: its own.
    """

    target: float | None = Field(None, gt=0, lt=1)
    rate_of: str = ""

    @model_validator(mode="after")
    def _target_of_a_search(self) -> Condition:
        if self.target is not None and not self.saturation:
            raise ValueError(f"target is {self.target:g}, but it is that of the saturation rate; give saturation: true")
        if self.rate_of and (self.saturation or self.rate is not None):
            raise ValueError(f"rate_of is {self.rate_of}, but the condition has a rate of its own; give one of the two")
        return self


class Arm(BaseModel):
    """A policy in a condition.

    Attributes:
        policy: its text.
        condition: name; empty: the finding's.
    """

    model_config = STRICT

    policy: str
    condition: str = ""


def _as_arm(given: Any) -> Any:
    return {"policy": given} if isinstance(given, str) else given


ArmField = Annotated[Arm, BeforeValidator(_as_arm)]


class Pair(BaseModel):
    """A difference of two policies, which another difference is compared with.

    Attributes:
        of: the first.
        against: the second.
    """

    model_config = STRICT

    of: ArmField
    against: ArmField


class Comparison(BaseModel):
    """What is compared, and by how much it must differ: exactly one of `at_least`, `within` and `not_below`.

    Attributes:
        of: a policy.
        against: another one, whose number is taken off, trace by trace; None: the number itself.
        beyond: a difference that is taken off this one.
        quantity: name of the number.
        ratio: whether the two are divided, and the change is told in per cent.
        at_least: the effect must reach this, above zero.
        within: the effect must not be further from zero than this.
        not_below: the effect must not be lower than this below zero.
    """

    model_config = STRICT

    of: ArmField
    against: ArmField | None = None
    beyond: Pair | None = None
    quantity: QuantityName = "goodput"
    ratio: bool = False
    at_least: float | None = Field(None, gt=0)
    within: float | None = Field(None, gt=0)
    not_below: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_rule(self) -> Comparison:
        given = [name for name in MARGINS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'nothing'} given; give one of {', '.join(MARGINS)}")
        if self.ratio and (self.against is None or self.beyond is not None):
            raise ValueError("ratio is true, but a ratio is that of two policies; give against, and no beyond")
        if self.ratio and self.at_least is None:
            raise ValueError(f"{given[0]} is given with ratio, which has at_least alone")
        if self.beyond is not None and self.against is None:
            raise ValueError("beyond is given without against; it is compared with the difference of the two")
        return self

    @property
    def kind(self) -> str:
        """Name of its rule."""
        return next(name for name in MARGINS if getattr(self, name) is not None)

    @property
    def margin(self) -> float:
        """The number in its rule, in the unit of the quantity, or in per cent."""
        return float(getattr(self, self.kind))

    def arms(self) -> tuple[Arm, ...]:
        """All policies that it looks at, as written."""
        more = () if self.beyond is None else (self.beyond.of, self.beyond.against)
        return (self.of, *(() if self.against is None else (self.against,)), *more)


class Finding(BaseModel):
    """A claim of the study, and when it counts as reproduced.

    Attributes:
        name: of the finding.
        claim: in words.
        study: what the study found, in few words.
        figure: name of the figure that shows it.
        condition: of policies that name none: the default condition of the finding.
        comparisons: all must hold.
        seeds: traces that it looks at; None: all.
    """

    model_config = STRICT

    name: Name
    claim: str
    study: str = "–"
    figure: str
    condition: str
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    seeds: int | None = Field(None, ge=1)

    def arms(self) -> Iterable[Arm]:
        """All policies that it looks at, each with its condition."""
        for comparison in self.comparisons:
            for arm in comparison.arms():
                yield self.placed(arm)

    def placed(self, arm: Arm) -> Arm:
        """A policy with its condition."""
        return arm if arm.condition else Arm(policy=arm.policy, condition=self.condition)


class Series(BaseModel):
    """A policy of a figure.

    Attributes:
        policy: its text.
        name: in the legend; the text unless given.
        conditions: names, one for each place of the figure, empty where it is not shown; those of the figure unless
            given.
    """

    model_config = STRICT

    policy: str
    name: str = ""
    conditions: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """In the legend."""
        return self.name or self.policy


def _as_series(given: Any) -> Any:
    return [_as_arm(each) for each in given] if isinstance(given, list | tuple) else given


class FigureConfig(BaseModel):
    """A figure.

    Attributes:
        name: of the file.
        title: on the page.
        reading: how to read it, beside what is said of all figures.
        kind: bars side by side, or lines.
        conditions: names, one for each place.
        at: words or numbers of the places; the names unless given.
        along: what the places are.
        series: policies: texts, or mappings of policy, name and conditions.
        quantities: one panel each.
        traces: how many traces are marked one by one.
    """

    model_config = STRICT

    name: Name
    title: str
    reading: str = ""
    kind: Literal["bars", "lines"] = "bars"
    conditions: tuple[str, ...] = Field(min_length=1)
    at: tuple[float | str, ...] = ()
    along: str = ""
    series: Annotated[tuple[Series, ...], BeforeValidator(_as_series)] = Field(min_length=1)
    quantities: tuple[QuantityName, ...] = Field(("goodput",), min_length=1)
    traces: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _one_word_for_each_place(self) -> FigureConfig:
        places = len(self.conditions)
        for field, given in (("at", self.at), *((f"conditions of {s.label}", s.conditions) for s in self.series)):
            if given and len(given) != places:
                raise ValueError(f"{field} has {len(given)} entries; the figure has {places} places")
        if self.kind == "lines" and any(isinstance(place, str) for place in self.places):
            raise ValueError("kind is lines, whose places are numbers; give at")
        labels = [series.label for series in self.series]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"series names {label} twice; each needs a name of its own")
        return self

    @property
    def places(self) -> tuple[float | str, ...]:
        """Words or numbers, one per place."""
        return self.at or self.conditions

    def arms_of(self, series: Series) -> tuple[Arm | None, ...]:
        """A policy in the conditions of the places; None where it is not shown."""
        names = series.conditions or self.conditions
        return tuple(Arm(policy=series.policy, condition=name) if name else None for name in names)

    def arms(self) -> Iterable[Arm]:
        """All policies that it shows."""
        for series in self.series:
            yield from (arm for arm in self.arms_of(series) if arm is not None)


class Published(BaseModel):
    """A number of the study.

    Attributes:
        condition: name.
        policy: as written in the figures.
        quantity: name.
        value: the number, or both ends of a range, in the unit in which figures show it.
    """

    model_config = STRICT

    condition: str
    policy: str
    quantity: QuantityName = "goodput"
    value: float | tuple[float, float]

    @model_validator(mode="after")
    def _low_end_first(self) -> Published:
        if self.ends[0] > self.ends[1]:
            raise ValueError(f"value is {list(self.ends)}; of a range the lower end comes first")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the range, equal for a number."""
        return self.value if isinstance(self.value, tuple) else (self.value, self.value)


class Quick(BaseModel):
    """What `--quick` changes.

    Attributes:
        seeds: traces of each condition, and of a search for a rate.
        duration_s: window.
    """

    model_config = STRICT

    seeds: int = Field(4, ge=1)
    duration_s: float = Field(60.0, gt=0)


class ExperimentConfig(BaseModel):
    """What an experiment file holds.

    Attributes:
        name: of the experiment.
        title: on the page.
        notes: for readers.
        seeds: traces of each condition.
        first_seed: of them.
        rate_seeds: traces of each search for a saturation rate.
        level: α; adjusted p-values below it count.
        quick: what `--quick` changes.
        scenario: fields of every condition that does not say otherwise.
        conditions: name and scenario of each.
        figures: in the order of the page.
        findings: likewise.
        published: the study's numbers.
        published_residual: mean absolute residual of the study's own simulator; None: it has none.
    """

    model_config = STRICT

    name: Name
    title: str = ""
    notes: str = ""
    seeds: int = Field(50, ge=1)
    first_seed: int = Field(VALIDATION.first, ge=0)
    rate_seeds: int = Field(20, ge=1)
    level: float = Field(0.05, gt=0, lt=1)
    quick: Quick = Quick()
    scenario: dict[str, Any] = {}
    conditions: tuple[dict[str, Any], ...] = Field(min_length=1)
    figures: tuple[FigureConfig, ...] = Field(min_length=1)
    findings: tuple[Finding, ...] = Field(min_length=1)
    published: tuple[Published, ...] = ()
    published_residual: float | None = Field(None, gt=0)

    @field_validator("figures", "findings")
    @classmethod
    def _names_differ(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [each.name for each in given]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name} stands twice; each needs one of its own")
        return given


_INSTEAD = {
    "rate": ("saturation", "rate_of"),
    "saturation": ("rate", "rate_of"),
    "rate_of": ("saturation", "rate"),
    "cluster": ("topology",),
    "topology": ("cluster",),
}
"""Fields of a condition, and those of the file's `scenario` in whose place they stand."""


def load(name_or_path: str | Path) -> tuple[ExperimentConfig, dict[str, Condition]]:
    """The experiment of this name in `configs/experiments`, or in this YAML file, and its conditions by name.

    Raises:
        ValueError: unknown name, unreadable file, or a field that is unknown or out of range; names the condition,
            figure or finding.
    """
    where = str(name_or_path)
    data = catalog.read("experiments", name_or_path)
    for kind, model in (("figures", FigureConfig), ("findings", Finding)):
        for number, given in enumerate(_mappings(data.get(kind)), 1):
            label = f"{where}: {kind.removesuffix('s')} {given.get('name', number)}"
            catalog.validate(model, given, label)
    config = catalog.validate(ExperimentConfig, data, where)
    conditions = _conditions(config, where)
    _check_names(config, conditions, where)
    return config, conditions


def _mappings(given: Any) -> list[dict[str, Any]]:
    """Those entries of a list that are mappings; whatever else stands there is for the whole file to refuse."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _conditions(config: ExperimentConfig, where: str) -> dict[str, Condition]:
    found: dict[str, Condition] = {}
    for number, given in enumerate(config.conditions, 1):
        label = f"{where}: condition {given.get('name', number)}"
        base = dict(config.scenario)
        for one, others in _INSTEAD.items():
            if given.get(one):
                for other in others:
                    base.pop(other, None)
        condition = catalog.validate(Condition, catalog.merge(base, given), label)
        if condition.name in found:
            raise ValueError(f"{label} stands twice; give each condition a name of its own")
        found[condition.name] = condition
    for condition in found.values():
        label = f"{where}: condition {condition.name}: rate_of"
        if condition.rate_of and condition.rate_of not in found:
            raise ValueError(f"{label}: {catalog.unknown('condition', condition.rate_of, found)}")
        if condition.rate_of and found[condition.rate_of].rate_of:
            raise ValueError(f"{label} is {condition.rate_of}, which has the rate of another one; name that")
    return found


def _check_names(config: ExperimentConfig, conditions: Iterable[str], where: str) -> None:
    known, figures = list(conditions), [figure.name for figure in config.figures]
    named = [(f"figure {figure.name}", arm) for figure in config.figures for arm in figure.arms()]
    named += [(f"finding {finding.name}", arm) for finding in config.findings for arm in finding.arms()]
    named += [("published", Arm(policy=each.policy, condition=each.condition)) for each in config.published]
    for label, arm in named:
        if arm.condition not in known:
            raise ValueError(f"{where}: {label}: {catalog.unknown('condition', arm.condition, known)}")
    for finding in config.findings:
        if finding.figure not in figures:
            raise ValueError(f"{where}: finding {finding.name}: {catalog.unknown('figure', finding.figure, figures)}")
