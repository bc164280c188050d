"""The policies of the leaderboard: `configs/experiments/suite.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from ...envs import catalog
from ...policies import registry
from ..matrix.config import STRICT, Contender
from .config import SuiteScenario

FILE = "suite"
"""In `configs/experiments`."""

TUNED_ON = "{tuned_on}"
"""Stands for a name of the scenario's `tuned_on` in the text of a policy: for each in turn."""


class Entry(Contender):
    """A policy of the leaderboard.

    Attributes:
        policy: its text; `{condition}` stands for the scenario's name, `{tuned_on}` for the names in its field.
        heuristic: whether it is a tuned heuristic, which the tails of others are held to.
        most_instances: of a cluster on which it runs; None: any. What is slow keeps to small clusters.
        seeds: at most so many of a scenario; None: all.
        not_in: names of scenarios in which it does not run.
    """

    heuristic: bool = False
    most_instances: int | None = Field(None, ge=1)
    seeds: int | None = Field(None, ge=1)
    not_in: tuple[str, ...] = ()

    def runs_in(self, scenario: str, instances: int) -> bool:
        """Whether it runs in the scenario of this name, on its cluster of so many instances."""
        return scenario not in self.not_in and (self.most_instances is None or instances <= self.most_instances)

    def in_scenario(self, scenario: SuiteScenario) -> Contender:
        """The contender of a matrix that it is in a scenario."""
        named = [
            [text.replace(TUNED_ON, name) for name in scenario.tuned_on] if TUNED_ON in text else [text]
            for text in (self.policy, *self.otherwise)
        ]
        texts = [text for some in named for text in some]
        return Contender(policy=texts[0], otherwise=tuple(texts[1:]), name=self.label)


class Roster(BaseModel):
    """What the file holds.

    Attributes:
        zero: name of the policy whose score is 0.
        reference: name of the policy against which no class and no family may lose much.
        scenarios: of the suite, in order.
        policies: texts, or mappings of the fields of `Entry`.
        notes: for readers.
    """

    model_config = STRICT

    zero: str
    reference: str
    scenarios: tuple[str, ...] = Field(min_length=1)
    policies: tuple[Entry, ...] = Field(min_length=1)
    notes: str = ""

    @field_validator("policies", mode="before")
    @classmethod
    def _texts_are_policies(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            return given
        return [{"policy": each} if isinstance(each, str) else each for each in given]

    @model_validator(mode="after")
    def _names_stand_for_something(self) -> Roster:
        labels = [entry.label for entry in self.policies]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"policies names {label} twice; each needs a name of its own")
        for field in ("zero", "reference"):
            name = getattr(self, field)
            if name not in labels:
                raise ValueError(catalog.unknown(field, name, labels))
            entry = self.entry(name)
            if entry.seeds is not None or entry.most_instances is not None or entry.not_in:
                raise ValueError(f"{field} is {name}, which must run everywhere and on all seeds")
        for entry in self.policies:
            for name in entry.not_in:
                if name not in self.scenarios:
                    raise ValueError(catalog.unknown(f"scenario in not_in of {entry.label}", name, self.scenarios))
        return self

    def entry(self, label: str) -> Entry:
        """The policy of this name."""
        return next(entry for entry in self.policies if entry.label == label)

    def chosen(self, texts: Sequence[str]) -> tuple[Entry, ...]:
        """Policies by their name here, or else by any text that names a policy, such as `package.module:Class`.

        Raises:
            ValueError: a text names no policy, or one twice.
        """
        known, found = {entry.label: entry for entry in self.policies}, []
        for text in texts:
            if text in known:
                found.append(known[text])
            else:
                named = registry.import_policy(text)
                registry.parse(named)
                found.append(Entry(policy=named))
        for entry in found:
            if [each.label for each in found].count(entry.label) > 1:
                raise ValueError(f"policy names {entry.label} twice; each runs once")
        return tuple(found)


def load(name_or_path: str | Path = FILE) -> Roster:
    """The roster that ships, or that of a YAML file.

    Raises:
        ValueError: the file is unreadable, or a field out of range.
    """
    return catalog.validate(Roster, catalog.read("experiments", name_or_path), str(name_or_path))
