"""TTFT and TPOT of the same requests in two simulators, and how far they lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from ...envs.cluster import PS_PER_S
from ...envs.trace import Trace

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
"""Quantiles of a comparison."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Delays:
    """Delays of requests, in the order of a trace.

    Attributes:
        ttft: (N,) s.
        tpot: (N,) s; NaN where there is one output token.
    """

    ttft: Floats
    tpot: Floats

    @classmethod
    def of(cls, ttft: Floats, rest: Floats, output: npt.NDArray[Any]) -> Delays:
        """From the time from first to last token, (N,) s, and the output tokens, (N,)."""
        many = output > 1
        return cls(ttft, np.where(many, rest / np.where(many, output - 1, 1), np.nan))

    @classmethod
    def of_records(cls, records: npt.NDArray[Any], trace: Trace) -> Delays:
        """From our records, dtype RECORD.

        Raises:
            RuntimeError: a request has no last token.
        """
        if (records["last_token"] < 0).any():
            raise RuntimeError("a request of ours was not served whole")
        ttft = (records["first_token"] - records["arrival"]) / PS_PER_S
        return cls.of(ttft, (records["last_token"] - records["first_token"]) / PS_PER_S, trace.output)

    def at(self, places: npt.NDArray[np.intp]) -> Delays:
        """Those of some requests."""
        return Delays(self.ttft[places], self.tpot[places])


class Distance(BaseModel):
    """How far one delay lies apart in two simulators.

    Attributes:
        quantiles: by level: theirs and ours, s.
        means: theirs and ours, s.
        ks: Kolmogorov–Smirnov: the largest difference of the two distribution functions.
        wasserstein: mean difference of equal quantiles (Wasserstein-1), s.
        paired: median absolute difference of the same request, s.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    quantiles: dict[str, tuple[float, float]]
    means: tuple[float, float]
    ks: float
    wasserstein: float
    paired: float

    @classmethod
    def between(cls, theirs: Floats, ours: Floats) -> Distance:
        """Of the same requests, (N,) s each; NaN in both is left out."""
        kept = ~np.isnan(theirs)
        one, two = theirs[kept], ours[kept]
        low, high = np.sort(one), np.sort(two)
        points = np.concatenate((low, high))
        steps = np.searchsorted(low, points, "right") - np.searchsorted(high, points, "right")
        levels = zip(LEVELS, np.quantile(low, LEVELS).tolist(), np.quantile(high, LEVELS).tolist(), strict=True)
        return cls(
            quantiles={f"{level:g}": (a, b) for level, a, b in levels},
            means=(float(one.mean()), float(two.mean())),
            ks=float(np.abs(steps).max() / len(low)),
            wasserstein=float(np.abs(low - high).mean()),
            paired=float(np.median(np.abs(one - two))),
        )
