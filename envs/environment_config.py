"""Configurations of the environment: a scenario, and what an agent is shown and paid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator

from . import catalog, rewards
from .scenario import Scenario

KIND = "environments"
"""Folder of `configs/` that holds the named ones."""

DEFAULT = "mixed-bursty"
"""The configuration that an environment has unless another is named."""


class EnvironmentConfig(Scenario):
    """What `gym.make("DisaggRoute-v0", …)` takes beside the scenario's fields.

    Attributes:
        reward: name of a reward.
        pad_to: rows of the observation per pool, (prefill, decode), or (mixed,) for an aggregated cluster; rows beyond
            the instances are zero and masked. None: one row per instance.
    """

    reward: str = rewards.SloMiss.name
    pad_to: tuple[int, ...] | None = None

    @field_validator("reward")
    @classmethod
    def _is_known(cls, name: str) -> str:
        rewards.make(name)
        return name

    @classmethod
    def load(cls, config: str | Path | Mapping[str, Any] | BaseModel = DEFAULT, **overrides: Any) -> EnvironmentConfig:
        """A configuration by name, from a YAML file or as a mapping, with some fields replaced.

        A `cluster` given replaces the configuration's `topology`, and the other way round.

        Args:
            config: name, path, mapping or model.
            **overrides: fields.

        Raises:
            ValueError: an unknown name or field, or a value that is not allowed.
        """
        if isinstance(config, BaseModel):
            base, label = config.model_dump(), "environment"
        elif isinstance(config, Mapping):
            base, label = dict(config), "environment"
        else:
            base, label = catalog.read(KIND, config), str(config)
        for given, other in (("cluster", "topology"), ("topology", "cluster")):
            if overrides.get(given) is not None and given not in base:
                base.pop(other, None)
        given_fields = {
            key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in overrides.items()
        }
        return catalog.validate(cls, base | given_fields, label)

    @property
    def scenario(self) -> Scenario:
        """The scenario alone."""
        return Scenario.model_validate(self.model_dump(exclude={"reward", "pad_to"}))


def names() -> tuple[str, ...]:
    """Names of the configurations, sorted."""
    return catalog.names(KIND)
