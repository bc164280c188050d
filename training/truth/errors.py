"""How far two sets of times of the same requests lie apart: request by request, and as distributions."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVELS = (0.5, 0.9, 0.99)
"""Quantiles that are told."""


@dataclass(frozen=True)
class Errors:
    """Simulated against measured times of the same requests (or one measurement against its repeat), seconds.

    Attributes:
        requests: compared.
        signed: P50, P90 and P99 of simulated − measured.
        absolute: the same of |simulated − measured|.
        relative: the same of |simulated − measured| / measured.
        bias: median of (simulated − measured) / measured.
        measured: P50, P90 and P99 of the measured times.
        simulated: the same of the simulated ones.
        ks: Kolmogorov-Smirnov distance: the largest difference of the two distribution functions.
        wasserstein: mean difference of the two sorted samples, s.
    """

    requests: int
    signed: tuple[float, ...]
    absolute: tuple[float, ...]
    relative: tuple[float, ...]
    bias: float
    measured: tuple[float, ...]
    simulated: tuple[float, ...]
    ks: float
    wasserstein: float

    def row(self) -> dict[str, float]:
        """As columns, with their unit."""
        row: dict[str, float] = {"requests": self.requests, "bias_relative": self.bias}
        for name, unit in (
            *(("signed", "_s"), ("absolute", "_s"), ("relative", "")),
            *(("measured", "_s"), ("simulated", "_s")),
        ):
            row |= {
                f"{name}_p{100 * level:g}{unit}": value
                for level, value in zip(LEVELS, asdict(self)[name], strict=True)
            }
        return row | {"ks": self.ks, "wasserstein_s": self.wasserstein}


def errors(measured: Floats, simulated: Floats) -> Errors:
    """Errors of the requests of which both times are known.

    Args:
        measured: (N,) s; NaN where not known.
        simulated: (N,) likewise.

    Raises:
        ValueError: no request has both.
    """
    both = np.isfinite(measured) & np.isfinite(simulated)
    a, b = measured[both], simulated[both]
    if not len(a):
        raise ValueError("no request has both times; at least one is needed")
    difference = b - a
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / a)
    return Errors(
        requests=len(a),
        signed=_levels(difference),
        absolute=_levels(np.abs(difference)),
        relative=_levels(np.abs(relative)),
        bias=float(np.median(relative)),
        measured=_levels(a),
        simulated=_levels(b),
        ks=kolmogorov_smirnov(a, b),
        wasserstein=float(np.abs(np.sort(a) - np.sort(b)).mean()),
    )


def kolmogorov_smirnov(a: Floats, b: Floats) -> float:
    """Largest difference of the distribution functions of two samples, between 0 and 1."""
    points = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(each), points, "right") / len(each) for each in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def _levels(values: Floats) -> tuple[float, ...]:
    return tuple(float(q) for q in np.quantile(values, LEVELS, method="inverted_cdf"))
