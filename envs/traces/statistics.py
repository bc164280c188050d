"""Statistics of a trace's arrivals and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cluster import PS_PER_S

WINDOWS_S = (1, 10, 60)
"""Windows of the index of dispersion, s."""

QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """Mean, extremes and quantiles (QUANTILES) of a length, tokens."""

    mean: float
    least: int
    most: int
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: npt.NDArray[np.int32]) -> Lengths:
        """Of these lengths."""
        quantiles = tuple(float(q) for q in np.quantile(values, QUANTILES))
        return cls(float(values.mean()), int(values.min()), int(values.max()), quantiles)


@dataclass(frozen=True)
class Statistics:
    """What `trace inspect` prints.

    Attributes:
        requests: number.
        duration_s: from the first arrival to the last.
        rate: requests per second.
        cv: coefficient of variation of the gaps; None with fewer than two gaps or no time.
        dispersion: by window in s, variance over mean of the arrivals in whole windows (Poisson: 1); None
            where fewer than two windows fit.
        prompt: tokens.
        output: tokens.
        correlation: Pearson's, of prompt and output length; None where one is constant.
    """

    requests: int
    duration_s: float
    rate: float
    cv: float | None
    dispersion: dict[int, float | None]
    prompt: Lengths
    output: Lengths
    correlation: float | None

    @classmethod
    def of(cls, arrival: Ints, prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]) -> Statistics:
        """Of requests sorted by arrival (ps)."""
        duration = int(arrival[-1] - arrival[0]) / PS_PER_S
        gaps = np.diff(arrival)
        varied = len(prompt) > 1 and prompt.std() > 0 and output.std() > 0
        return cls(
            requests=len(arrival),
            duration_s=duration,
            rate=(len(arrival) - 1) / duration if duration > 0 else 0.0,
            cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 and duration > 0 else None,
            dispersion={window: dispersion(arrival, window) for window in WINDOWS_S},
            prompt=Lengths.of(prompt),
            output=Lengths.of(output),
            correlation=float(np.corrcoef(prompt, output)[0, 1]) if varied else None,
        )


def dispersion(arrival: Ints, window_s: float) -> float | None:
    """Index of dispersion of counts: variance over mean of the arrivals per whole window.

    Args:
        arrival: (N,) ps, sorted; windows start at the first.
        window_s: seconds.

    Returns:
        None where fewer than two whole windows fit.
    """
    window = round(window_s * PS_PER_S)
    place = (arrival - arrival[0]) // window
    windows = int(place[-1])
    if windows < 2:
        return None
    counts = np.bincount(place[place < windows], minlength=windows)
    return float(counts.var() / counts.mean())
