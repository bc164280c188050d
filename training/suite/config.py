"""Scenarios of the suite, as a person writes them: one YAML file each (docs/suite.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from ...envs import catalog, cluster_config
from ...envs.setting import Setting
from ...policies import policy_file
from ..matrix.config import STRICT, Condition, Name
from ..runs import fingerprint
from ..seeds import HELD_OUT, TUNING, VALIDATION, SeedRange, seeds_from
from .best_known import FILE as BEST_KNOWN

KIND = "suite"
"""Folder of `configs/`."""


class Span(BaseModel):
    """Consecutive seeds.

    Attributes:
        first: the first one.
        count: how many.
    """

    model_config = STRICT

    first: int = Field(ge=0)
    count: int = Field(ge=1)

    @property
    def seeds(self) -> range:
        """All of them."""
        return seeds_from(self.first, self.count)


class Seeds(BaseModel):
    """The seeds of a scenario, by what they are for; a recorded trace has none.

    Attributes:
        tuning: for tuning and training.
        validation: for choosing, for what is best known, and for the leaderboard; by default not those on which
            `disaggroute tune` chooses.
        held_out: for claims.
    """

    model_config = STRICT

    tuning: Span = Span(first=TUNING.first, count=1_000)
    validation: Span = Span(first=VALIDATION.first + 20, count=20)
    held_out: Span = Span(first=HELD_OUT.first, count=50)

    @model_validator(mode="after")
    def _in_their_ranges(self) -> Seeds:
        ranges: dict[str, tuple[Span, SeedRange]] = {
            "tuning": (self.tuning, TUNING),
            "validation": (self.validation, VALIDATION),
            "held_out": (self.held_out, HELD_OUT),
        }
        for name, (span, within) in ranges.items():
            try:
                seeds_from(span.first, span.count, within=within)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return self


class SuiteScenario(Condition):
    """A scenario of the suite: a condition of a matrix with a version and fixed seeds.

    Attributes:
        version: raised with every change that may change a number; scores of different versions are not compared.
        notes: what it asks of a policy, in one or two sentences.
        tuned_on: short names of policy files, or one of them: where a policy has none of the scenario's own name, the
            first of these that it has stands in.
        beside: another scenario with the same traffic on the same GPUs, deployed otherwise.
        seeds: by what they are for.
    """

    version: int = Field(ge=1)
    notes: str = Field(min_length=1)
    tuned_on: tuple[str, ...] = Field(("mixed-bursty",), min_length=1)
    beside: Name | None = None
    seeds: Seeds = Seeds()

    @field_validator("tuned_on", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @property
    def condition(self) -> dict[str, Any]:
        """What a matrix needs to know, as written."""
        return self.model_dump(include=set(Condition.model_fields), exclude_defaults=True) | {"name": self.name}

    @property
    def recorded(self) -> bool:
        """Whether its workload is a trace file."""
        return "." in self.workload and not self.workload.endswith((".yaml", ".yml"))

    @cached_property
    def content(self) -> str:
        """Fingerprint of all that decides its numbers but the program: its fields, its cluster, its traffic.

        Raises:
            ValueError: a name stands for nothing.
        """
        written = self.model_dump(mode="json", exclude={"name", "version", "notes", "tuned_on", "beside"})
        if self.recorded:  # The trace may not be there, and is the same everywhere.
            if isinstance(self.cluster, str):
                written["cluster"] = cluster_config.load(self.cluster).model_dump(mode="json")
            return fingerprint(written)
        setting = Setting.of(self.scenario)
        stored = setting.stored_rate if self.saturation else None
        return fingerprint(written | {"setting": setting.configuration(), "stored_rate": stored})


def names() -> tuple[str, ...]:
    """Names of the scenarios that ship or are registered, sorted."""
    return tuple(name for name in catalog.names(KIND) if name != BEST_KNOWN)


def load(name_or_path: str) -> SuiteScenario:
    """The scenario of this name in `configs/suite`, or in this YAML file.

    Raises:
        ValueError: an unknown name (with the nearest ones), an unreadable file, or a field out of range.
    """
    if name_or_path == BEST_KNOWN:
        raise ValueError(catalog.unknown("scenario of the suite", name_or_path, names()))
    scenario = catalog.validate(SuiteScenario, catalog.read(KIND, name_or_path), name_or_path)
    if name_or_path in names() and scenario.name != name_or_path:
        raise ValueError(f"{name_or_path}: name is {scenario.name!r}; it must be that of the file")
    there = sorted({path.split("/")[-1] for path in catalog.names(policy_file.KIND)})
    for name in scenario.tuned_on:
        if name not in there and not name.endswith((".yaml", ".yml")):
            raise ValueError(f"{name_or_path}: {catalog.unknown('policy file in tuned_on', name, there)}")
    return scenario


def load_all(chosen: Sequence[str]) -> tuple[SuiteScenario, ...]:
    """Scenarios by name or file.

    Raises:
        ValueError: as `load`; none is chosen, or two have one name.
    """
    if not chosen:
        raise ValueError("scenarios is empty; at least one scenario is needed")
    found: dict[str, SuiteScenario] = {}
    for each in chosen:
        scenario = load(each)
        if scenario.name in found:
            raise ValueError(f"scenarios names {scenario.name} twice; each runs once")
        found[scenario.name] = scenario
    return tuple(found.values())
