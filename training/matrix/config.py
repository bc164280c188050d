"""Matrix files: conditions, policies and seeds, as a person writes them (docs/matrices.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from ...envs import catalog
from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...policies import policy_file, registry
from ...policies.policy_text import PolicyText
from ..evaluation import check_pools
from ..seeds import VALIDATION

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

PLACEHOLDER = "{condition}"
"""Stands for the condition's name in the text of a policy."""



def _check_name(name: str) -> str:
    """Names become folders, and stand in the file names of policies."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} must be lower-case letters, digits and hyphens")
    return catalog.check_name(name)


Name = Annotated[str, AfterValidator(_check_name)]


class Condition(Scenario):
    """A scenario, and how its rate is found.

    Attributes:
        name: of the condition.
        saturation: whether it runs at its saturation rate, stored or searched for.
        factor: on that rate.
    """

    name: Name
    saturation: bool = False
    factor: float = Field(1.0, gt=0, le=1e3, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_rate(self) -> Condition:
        if self.saturation and self.rate is not None:
            raise ValueError(f"rate is {self.rate:g}, but saturation is true, which finds one; give one of the two")
        if self.factor != 1 and not self.saturation:
            raise ValueError(f"factor is {self.factor:g}, but it multiplies the saturation rate; give saturation: true")
        return self

    @property
    def scenario(self) -> Scenario:
        """The scenario alone."""
        return Scenario.make(**{name: getattr(self, name) for name in Scenario.model_fields})


class Contender(BaseModel):
    """A policy of every condition.

    Attributes:
        policy: its text; `{condition}` stands for the condition's name.
        otherwise: texts to be taken in its place where there is no such policy file, or where it does not fit the
            pools: the first that does.
        name: in tables; the text unless given.
    """

    model_config = STRICT

    policy: str
    otherwise: tuple[str, ...] = ()
    name: Annotated[str, AfterValidator(catalog.check_name)] = Field("", validate_default=False)

    @field_validator("otherwise", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @property
    def label(self) -> str:
        """In tables."""
        return self.name or self.policy

    def policy_in(self, condition: str, setting: Setting) -> str:
        """The text of the policy in a condition.

        Raises:
            ValueError: a policy is unknown or malformed, or the last text does not fit the condition either.
        """
        *first, last = (text.replace(PLACEHOLDER, condition) for text in (self.policy, *self.otherwise))
        for text in first:
            if _has_file(text) and _fits(text, setting):
                return text
        return last


class MatrixConfig(BaseModel):
    """What a matrix file holds.

    Attributes:
        name: of the matrix.
        policies: texts, or mappings of policy, otherwise and name.
        reference: name of the policy that the others are compared with.
        seeds: traces of each condition; a recorded trace has one.
        first_seed: of them.
        scenario: fields of every condition that does not say otherwise.
        conditions: name and scenario of each.
        notes: for readers.
    """

    model_config = STRICT

    name: Name
    policies: tuple[Contender, ...] = Field(min_length=1)
    reference: str
    seeds: int = Field(5, ge=1)
    first_seed: int = Field(VALIDATION.first, ge=0)
    scenario: dict[str, Any] = {}
    conditions: tuple[dict[str, Any], ...] = Field(min_length=1)
    notes: str = ""

    @field_validator("policies", mode="before")
    @classmethod
    def _texts_are_policies(cls, given: Any) -> Any:
        return [{"policy": each} if isinstance(each, str) else each for each in given] if _is_list(given) else given

    @model_validator(mode="after")
    def _names_differ(self) -> MatrixConfig:
        labels = [contender.label for contender in self.policies]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"policies names {label} twice; each needs a name of its own")
        if self.reference not in labels:
            raise ValueError(catalog.unknown("reference", self.reference, labels))
        return self


def load(name_or_path: str | Path) -> tuple[MatrixConfig, tuple[Condition, ...]]:
    """The matrix of this name in `configs/experiments`, or in this YAML file, and its conditions.

    Raises:
        ValueError: unknown name, unreadable file, or a field that is unknown or out of range; names the condition.
    """
    where = str(name_or_path)
    config = catalog.validate(MatrixConfig, catalog.read("experiments", name_or_path), where)
    return config, _conditions(config, where)


def _conditions(config: MatrixConfig, where: str) -> tuple[Condition, ...]:
    found: dict[str, Condition] = {}
    for number, given in enumerate(config.conditions, 1):
        label = f"{where}: condition {given.get('name', number)}"
        condition = catalog.validate(Condition, catalog.merge(config.scenario, given), label)
        if condition.name in found:
            raise ValueError(f"{label} stands twice; give each condition a name of its own")
        found[condition.name] = condition
    return tuple(found.values())


def _has_file(text: str) -> bool:
    """Whether the policy file that a text names is there; a text without one has what it needs."""
    wanted = PolicyText.read(text)
    registry.policy_class(wanted.name)  # An unknown policy is no missing file.
    if wanted.file is None:
        return True
    if wanted.file.endswith((".yaml", ".yml")):
        return Path(wanted.file).exists()
    return wanted.file in policy_file.shipped(wanted.name)


def _fits(text: str, setting: Setting) -> bool:
    policy = registry.parse(text)
    try:
        check_pools(policy, setting)
    except ValueError:
        return False
    return True


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple)
