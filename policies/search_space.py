"""Search spaces: which parameters of a policy can be tuned, and between which bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Dimension:
    """One number that a search may choose.

    Attributes:
        name: parameter of the policy.
        low: smallest value.
        high: largest value.
        start: where a search begins: the default where there is one.
        scale: on which the search moves; log needs `low` above 0.
        key: place in a parameter that is a list (int) or a mapping (str); None: the parameter is the number.

    Raises:
        ValueError: the bounds are not in order, or a log scale meets a bound of 0 or less.
    """

    name: str
    low: float
    high: float
    start: float
    scale: Literal["linear", "log"] = "linear"
    key: int | str | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high or not self.low <= self.start <= self.high:
            raise ValueError(f"{self.name}: {self.low} < {self.high} with {self.start} between is needed")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"{self.name}: low is {self.low}; on a log scale it must be greater than 0")

    @property
    def label(self) -> str:
        """`name`, or `name[key]`."""
        return self.name if self.key is None else f"{self.name}[{self.key}]"

    def value(self, place: float) -> float:
        """The value at a place between 0 (low) and 1 (high); places beyond are cut off.

        It is rounded to six digits, so that what was tried is what can be read and copied.
        """
        x = min(max(place, 0.0), 1.0)
        if self.scale == "log":
            value = float(np.exp(np.log(self.low) + x * (np.log(self.high) - np.log(self.low))))
        else:
            value = self.low + x * (self.high - self.low)
        return min(max(float(f"{value:.6g}"), self.low), self.high)

    def place(self, value: float) -> float:
        """The inverse of `value`."""
        if self.scale == "log":
            return float((np.log(value) - np.log(self.low)) / (np.log(self.high) - np.log(self.low)))
        return (value - self.low) / (self.high - self.low)


def params_at(space: Sequence[Dimension], places: Sequence[float]) -> dict[str, Any]:
    """Parameters of a policy at a point of its search space.

    Args:
        space: the dimensions.
        places: (n,) one place, 0 to 1, for each.

    Raises:
        ValueError: the numbers of places and dimensions differ.
    """
    params: dict[str, Any] = {}
    for dimension, place in zip(space, places, strict=True):
        value = dimension.value(place)
        if dimension.key is None:
            params[dimension.name] = value
        elif isinstance(dimension.key, str):
            params.setdefault(dimension.name, {})[dimension.key] = value
        else:
            params.setdefault(dimension.name, []).append(value)
    return params
