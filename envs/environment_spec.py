"""The `spec` of an environment: how it was made, with arguments as JSON holds them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from pydantic import BaseModel


class JsonSpec:
    """An environment whose `spec.to_json()` works whatever it was made with."""

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """How `gym.make` or `gym.make_vec` made the environment, with its arguments as JSON holds them."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        if spec is not None:
            spec.kwargs = json_able(spec.kwargs)
        self._spec = spec


def json_able(argument: Any) -> Any:
    """A keyword argument of `gym.make` as JSON holds it: models are mappings, tuples lists, paths text."""
    if isinstance(argument, BaseModel):
        return argument.model_dump(mode="json")
    if isinstance(argument, Mapping):
        return {key: json_able(value) for key, value in argument.items()}
    if isinstance(argument, list | tuple):
        return [json_able(value) for value in argument]
    if isinstance(argument, Path):
        return str(argument)
    if isinstance(argument, Enum):
        return argument.value
    return argument.tolist() if isinstance(argument, np.generic | np.ndarray) else argument
