"""Length distributions: mixtures of lognormals, rounded to tokens and truncated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

Floats = npt.NDArray[np.float64]


class Part(BaseModel):
    """One lognormal of a mixture.

    Attributes:
        weight: share of the mixture before truncation; weights are normalised.
        median: tokens.
        sigma: standard deviation of the logarithm.
    """

    model_config = STRICT

    weight: float = Field(1.0, gt=0, le=1e6)
    median: float = Field(gt=0, le=1e9)
    sigma: float = Field(gt=0, le=100)


class LengthLaw(BaseModel):
    """A law of lengths in tokens.

    The mixture is rounded to the nearest token and *conditioned* on lying in [min, max]: the law that
    redrawing until the value lies there has. Nothing piles up at the bounds, as clipping would make it.
    Sampling inverts the tabulated distribution function, one uniform number per length, so the k-th
    length depends on the k-th number only.

    Attributes:
        parts: lognormals.
        min: least length, tokens.
        max: largest length, tokens.
    """

    model_config = STRICT

    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    min: int = Field(1, ge=1, le=1_048_576)
    max: int = Field(8192, ge=1, le=1_048_576)

    @model_validator(mode="after")
    def _bounds_hold_mass(self) -> LengthLaw:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}; it must be at most max ({self.max})")
        if self._mass() < 1e-6:
            raise ValueError(
                f"min {self.min} to max {self.max} holds {self._mass():.1e} of the mixture; "
                "it must hold at least 1e-6"
            )
        return self

    def table(self) -> Floats:
        """P(length ≤ min … max), shape (max − min + 1,); the last entry is 1."""
        return _table(self)

    def probabilities(self) -> Floats:
        """P(length = min … max), shape (max − min + 1,)."""
        return np.diff(_table(self), prepend=0.0)

    def mean(self) -> float:
        """Mean length, tokens."""
        return float(self.probabilities() @ np.arange(self.min, self.max + 1))

    def lengths(self, uniform: Floats) -> npt.NDArray[np.int32]:
        """The lengths at these values of the distribution function.

        Args:
            uniform: (N,) in [0, 1).
        """
        return Lengths((self,)).at(uniform, np.zeros(len(uniform), np.int8))

    def _mass(self) -> float:
        low, high = _mixture(self, np.array([self.min - 0.5, self.max + 0.5]))
        return float(high - low)


class Lengths:
    """The laws of some families, to be sampled together.

    Args:
        laws: one per family.
    """

    def __init__(self, laws: Sequence[LengthLaw]) -> None:
        from .inversion import Inverse

        self._inverse = Inverse.of([law.table() for law in laws], [law.min for law in laws])

    def at(self, uniform: Floats, family: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
        """The lengths at these values of the distribution functions.

        Args:
            uniform: (N,) in [0, 1).
            family: (N,) whose law, for each.
        """
        return self._inverse.places(uniform, family)


@lru_cache(maxsize=64)
def _table(law: LengthLaw) -> Floats:
    """Distribution function at min … max; the last entry is 1."""
    values = _mixture(law, np.arange(law.min, law.max + 2, dtype=np.float64) - 0.5)
    table: Floats = (values[1:] - values[0]) / (values[-1] - values[0])
    table[-1] = 1.0
    return table


def _mixture(law: LengthLaw, edges: Floats) -> Floats:
    """Distribution function of the untruncated mixture."""
    total = sum(part.weight for part in law.parts)
    logs = np.log(edges)
    value = np.zeros(len(edges))
    for part in law.parts:
        z = (logs - math.log(part.median)) / (part.sigma * math.sqrt(2.0))
        value += part.weight / total * 0.5 * np.array([math.erfc(-x) for x in z.tolist()])
    return value
