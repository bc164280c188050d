"""Routers of the plain simulator: the ledger, and predictors that learn (docs/model.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ..trace import TIGHT
from .reference_instance import Instance, Request

PredictorName = Literal["bucket", "prompt-bucket", "prompt-regression"]

UNSEEN = 128
"""Predicted output of a predictor that has seen nothing, tokens."""


class Predictor(Protocol):
    """Gives ô at admission and learns o when a request finishes."""

    def predict(self, request: Request) -> int:
        """Predicted output length, tokens, ≥ 1."""
        ...

    def learn(self, request: Request) -> None:
        """Takes in the true output length of a finished request."""
        ...


@dataclass
class Static:
    """Predictions fixed before the run, one per request of the trace."""

    values: list[int]

    def predict(self, request: Request) -> int:
        """The prediction given for this request."""
        return self.values[request.index]

    def learn(self, request: Request) -> None:
        """Learns nothing."""


@dataclass
class Mean:
    """Mean of integers, rounded half up."""

    count: int = 0
    total: int = 0

    def value(self) -> int:
        """The mean, at least 1; `UNSEEN` when empty."""
        if self.count == 0:
            return UNSEEN
        return max(1, (2 * self.total + self.count) // (2 * self.count))


@dataclass
class Buckets:
    """Mean output of similar requests, else of less similar ones, else of all."""

    by_class: bool
    means: dict[Hashable, Mean] = field(default_factory=lambda: defaultdict(Mean))

    def predict(self, request: Request) -> int:
        """The mean of the narrowest key that has seen a request."""
        seen = [self.means[key].value() for key in self._keys(request) if self.means[key].count]
        return seen[0] if seen else UNSEEN

    def learn(self, request: Request) -> None:
        """Counts the request under all its keys."""
        for key in self._keys(request):
            self.means[key].count += 1
            self.means[key].total += request.output

    def _keys(self, request: Request) -> Iterator[Hashable]:
        """From the narrowest to the widest."""
        power = request.prompt.bit_length() - 1
        if self.by_class:
            yield request.slo, power
            yield ("class", request.slo)
        else:
            yield power
        yield "all"


@dataclass
class Regression:
    """Least squares of output on prompt tokens, in float64 from exact sums."""

    seen: list[Request] = field(default_factory=list)

    def predict(self, request: Request) -> int:
        """The line's value at the prompt length; the mean of all while the line is undefined."""
        n = len(self.seen)
        sp = sum(r.prompt for r in self.seen)
        so = sum(r.output for r in self.seen)
        spp = sum(r.prompt * r.prompt for r in self.seen)
        spo = sum(r.prompt * r.output for r in self.seen)
        denominator = n * spp - sp * sp
        if denominator == 0:
            return Mean(n, so).value()
        slope = float(n * spo - sp * so) / float(denominator)
        return max(1, math.floor((so - slope * sp) / n + slope * request.prompt + 0.5))

    def learn(self, request: Request) -> None:
        """Remembers the request."""
        self.seen.append(request)


def make_predictor(predicted: npt.NDArray[np.generic] | str, n: int) -> Predictor:
    """A fresh predictor.

    Args:
        predicted: (n,) static predictions in tokens, or the name of a learning predictor.
        n: requests of the trace.

    Raises:
        ValueError: an unknown name, or an array of another length.
    """
    if isinstance(predicted, str):
        if predicted == "bucket":
            return Buckets(by_class=True)
        if predicted == "prompt-bucket":
            return Buckets(by_class=False)
        if predicted == "prompt-regression":
            return Regression()
        names = ", ".join(get_args(PredictorName))
        raise ValueError(
            f"predicted is {predicted!r}; allowed are {names} or an array with one value per request"
        )
    values = np.asarray(predicted)
    if values.shape != (n,):
        raise ValueError(f"predicted has shape {values.shape}; it must be ({n},), one value per request")
    return Static([int(value) for value in values])


@dataclass
class Router:
    """What one router knows: the requests it has in flight, and what its predictor has learnt."""

    predictor: Predictor
    in_flight: list[Request] = field(default_factory=list)

    def prefill_ledger(self, instance: Instance) -> tuple[int, int, int]:
        """The ledger's columns of PREFILL_VIEW for one instance, summed anew."""
        mine = [r for r in self.in_flight if r.prefill is instance and r.prefill_end < 0]
        return len(mine), sum(r.prompt for r in mine), sum(r.slo == TIGHT for r in mine)

    def decode_ledger(self, instance: Instance, prefill_tokens: int) -> tuple[int, ...]:
        """The ledger's columns of DECODE_VIEW for one instance, summed anew.

        Args:
            instance: a decode or mixed instance.
            prefill_tokens: output tokens that come from the prefill instance, 0 or 1.
        """
        mine = [r for r in self.in_flight if r.decode is instance]
        return (
            len(mine),
            sum(r.generated <= prefill_tokens for r in mine),
            sum(r.prompt + r.predicted for r in mine),
            sum(r.predicted for r in mine),
            sum(max(0, r.predicted - r.generated) for r in mine),
            sum(r.prompt + r.generated for r in mine),
            sum(r.slo == TIGHT for r in mine),
        )
