"""Configurations of the environment: a scenario, and what an agent is shown and paid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, field_validator

from . import catalog, rewards
from .cluster_config import MAX_COUNT
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

        A `cluster` given replaces the configuration's `topology`, and the other way round; so does a `profile` its
        `cluster`, whose engines are others.

        Args:
            config: name, path, mapping or model.
            **overrides: fields.

        Raises:
            ValueError: an unknown name or field, or a value that is not allowed.
        """
        label = "environment"
        if isinstance(config, BaseModel):
            base = config.model_dump()
        elif isinstance(config, Mapping):
            base = {key: _plain(value) for key, value in config.items()}
        elif isinstance(config, str | Path):
            base, label = catalog.read(KIND, config), str(config)
        else:
            raise ValueError(f"config is {config!r}; it must be a name, a path, a mapping or a model")
        for given, other in (("cluster", "topology"), ("topology", "cluster"), ("profile", "cluster")):
            if overrides.get(given) is not None and overrides.get(other) is None:
                base.pop(other, None)
        return catalog.validate(cls, base | {key: _plain(value) for key, value in overrides.items()}, label)

    def rows(self, prefills: int, decodes: int, *, aggregated: bool) -> tuple[int, int]:
        """Rows of the observation per pool, padding included.

        Args:
            prefills: instances of the prefill pool.
            decodes: instances of the decode pool, or mixed ones.
            aggregated: whether the instances are mixed.

        Returns:
            Of the prefill pool (aggregated: 0) and of the decode pool, or the mixed one.

        Raises:
            ValueError: `pad_to` does not hold the cluster.
        """
        own = (decodes,) if aggregated else (prefills, decodes)
        wanted = own if self.pad_to is None else self.pad_to
        if len(wanted) != len(own) or any(not o <= w <= MAX_COUNT for w, o in zip(wanted, own, strict=True)):
            pools = "1 number (mixed)" if aggregated else "2 numbers (prefill, decode)"
            raise ValueError(
                f"pad_to is {list(wanted)}; it must hold {pools}, at least {list(own)} and at most {MAX_COUNT} each"
            )
        return (0, wanted[0]) if aggregated else (wanted[0], wanted[1])

    @property
    def scenario(self) -> Scenario:
        """The scenario alone."""
        return Scenario.model_validate(self.model_dump(exclude={"reward", "pad_to"}))


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else value


def names() -> tuple[str, ...]:
    """Names of the configurations, sorted."""
    return catalog.names(KIND)
