"""Training methods by name: each is one module with a `Config`, a `UNIT` and a function `train`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...envs import catalog
from .config import TrainingConfig, changed

if TYPE_CHECKING:
    from .run import Candidate, TrainingRun

_MODULES = {
    "es": "es",
    "ppo": "ppo",
    "maskable-ppo": "ppo",
    "dqn": "dqn",
    "imitation": "imitation",
}
"""Module of each method; it is imported when the method is asked for."""


class Method(Protocol):
    """What a method's module holds."""

    Config: type[TrainingConfig]
    """The configuration: `method` as a literal, and the method's own `parameters`."""

    UNIT: str
    """What the budget counts, in the plural."""

    def train(self, config: Any, run: TrainingRun) -> list[Candidate]:
        """Trains from the run's last checkpoint to the end of the budget.

        Args:
            config: of the type `Config`.
            run: folder, seed, workers; checkpoints and learning curve go to it.

        Returns:
            The policies that validation is to choose among. The same seed gives the same ones, interrupted or not.
        """


def names() -> tuple[str, ...]:
    """Names of the methods."""
    return tuple(_MODULES)


def method(name: str) -> Method:
    """The module of a method.

    Raises:
        ValueError: an unknown name.
    """
    if name not in _MODULES:
        raise ValueError(f"method: {catalog.unknown('training method', name, _MODULES)}")
    return cast(Method, importlib.import_module(f".{_MODULES[name]}", __package__))


def load(name_or_path: str | Path, changes: tuple[str, ...] = ()) -> TrainingConfig:
    """Reads a training configuration, of the type that its method asks for; `TrainingConfig.check` comes next.

    Args:
        name_or_path: a name from `configs/training`, or a path that ends in .yaml.
        changes: `KEY=VALUE` each, applied to what the file holds.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """
    return of(changed(catalog.read("training", name_or_path), changes), str(name_or_path))


def of(data: dict[str, Any], label: str = "training") -> TrainingConfig:
    """The configuration that a mapping describes.

    Args:
        data: its fields.
        label: what to call it in complaints.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """
    if not isinstance(data.get("method"), str):
        given = "missing" if "method" not in data else repr(data["method"])
        raise ValueError(f"{label}: method is {given}; it must be one of {', '.join(names())}")
    try:
        module = method(data["method"])
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    return catalog.validate(module.Config, data, label)
