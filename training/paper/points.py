"""Files of a map of conditions: axes, and what each of their points changes (docs/paper.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ...envs import catalog
from ...policies import registry
from ..matrix.config import Name
from ..seeds import VALIDATION
from .config import Condition, ExperimentConfig, Quick
from .config import load as load_experiment

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Point(BaseModel):
    """What is changed in every condition of the experiment.

    Attributes:
        name: of the point; it stands in the names of the files that are made for it.
        title: in figures and tables; the name unless given.
        workload: fields of the workload's file.
        length_spread: factor on the standard deviation of the logarithm of all lengths.
        profile: fields of the profile's file.
        cluster: fields of a cluster's file.
        scenario: fields of the scenario, of conditions that do not set them themselves.
        policies: a text for the name of a policy; parameters in brackets stay.
    """

    model_config = STRICT

    name: Name
    title: str = ""
    workload: dict[str, Any] = {}
    length_spread: float = Field(1.0, gt=0, le=10)
    profile: dict[str, Any] = {}
    cluster: dict[str, Any] = {}
    scenario: dict[str, Any] = {}
    policies: dict[str, str] = {}

    @property
    def label(self) -> str:
        """In figures and tables."""
        return self.title or self.name


class Axis(BaseModel):
    """What is varied, all else as in the experiment.

    Attributes:
        name: of the axis.
        title: on the page.
        note: what the default is, and what a reader must know.
        points: beside the default.
    """

    model_config = STRICT

    name: Name
    title: str
    note: str = ""
    points: tuple[Point, ...] = Field(min_length=1)


class MapConfig(BaseModel):
    """What a file of a map holds.

    Attributes:
        name: of the map.
        title: on the page.
        notes: for readers.
        experiment: name or file of the experiment whose findings are looked at.
        findings: names of those; empty: all.
        seeds: traces of each condition.
        first_seed: of them.
        duration_s: window of every condition; None: the experiment's.
        rate_seeds: traces of each search for a saturation rate.
        quick: what `--quick` changes.
        axes: in the order of the page.
    """

    model_config = STRICT

    name: Name
    title: str = ""
    notes: str = ""
    experiment: str
    findings: tuple[str, ...] = ()
    seeds: int = Field(20, ge=1)
    first_seed: int = Field(VALIDATION.first, ge=0)
    duration_s: float | None = Field(None, gt=0)
    rate_seeds: int = Field(5, ge=1)
    quick: Quick = Quick()
    axes: tuple[Axis, ...] = Field(min_length=1)

    @field_validator("axes")
    @classmethod
    def _names_differ(cls, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        for names in ([axis.name for axis in axes], [point.name for axis in axes for point in axis.points]):
            for name in names:
                if names.count(name) > 1 or name == DEFAULT.name:
                    raise ValueError(f"the name {name} stands twice; each needs one of its own")
        return axes


DEFAULT = Point(name="default")
"""The point at which nothing is changed."""


def load(name_or_path: str | Path) -> tuple[MapConfig, ExperimentConfig, dict[str, Condition]]:
    """The map of this name in `configs/experiments`, or in this YAML file, with its experiment and its conditions.

    Raises:
        ValueError: unknown name, unreadable file, or a field that is unknown or out of range; names the axis.
    """
    where = str(name_or_path)
    data = catalog.read("experiments", name_or_path)
    for given in data.get("axes") or () if isinstance(data.get("axes"), list) else ():
        if isinstance(given, dict):
            catalog.validate(Axis, given, f"{where}: axis {given.get('name', '')}".rstrip())
    config = catalog.validate(MapConfig, data, where)
    for axis in config.axes:
        for point in axis.points:
            _check_policies(point, f"{where}: axis {axis.name}: point {point.name}: policies")
    experiment, conditions = load_experiment(config.experiment)
    known = [finding.name for finding in experiment.findings]
    for name in config.findings:
        if name not in known:
            raise ValueError(f"{where}: {catalog.unknown('finding', name, known)}")
    return config, experiment, conditions


def _check_policies(point: Point, label: str) -> None:
    """Refuses names of policies that do not exist: their conditions would be left out, or nothing would change."""
    try:
        for name, text in point.policies.items():
            registry.policy_class(name)
            registry.parse(text)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error
