"""Arrival processes: points of unit rate, mapped through the integrated intensity.

The points (gamma renewal) and the bursts (alternating on and off runs, in real seconds) are drawn once
from the seed. The arrival times are where the integrated intensity reaches the points. The rate only
scales the intensity, so a small change of rate moves every arrival a little and draws nothing anew.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ..cluster import MAX_TIME_PS, PS_PER_S
from ..streams import natural, stream

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

CHUNK = 65_536
"""Points are drawn and summed in pieces of this size, so that a longer run has the same first points."""

RUNS = 1_024
"""Bursts are drawn and summed in pieces of this size, likewise."""

MAX_REQUESTS = 100_000_000
"""Most points and bursts of a trace: their columns take a few GB."""

Floats = npt.NDArray[np.float64]


class Poisson(BaseModel):
    """Exponential gaps."""

    model_config = STRICT

    process: Literal["poisson"] = "poisson"


class Gamma(BaseModel):
    """Gamma-distributed gaps.

    Attributes:
        cv: coefficient of variation of a gap; 1 is Poisson.
    """

    model_config = STRICT

    process: Literal["gamma"]
    cv: float = Field(ge=0.01, le=100)


class OnOff(BaseModel):
    """Arrivals in exponential on-runs only.

    Attributes:
        on_fraction: share of the time that is on.
        mean_on_s: mean length of an on-run, s.
        cv: of the gaps at constant intensity.
    """

    model_config = STRICT

    process: Literal["on-off"]
    on_fraction: float = Field(ge=1e-3, lt=1)
    mean_on_s: float = Field(ge=1e-3, le=1e6)
    cv: float = Field(1.0, ge=0.01, le=100)


class Mmpp(BaseModel):
    """Two-state Markov-modulated Poisson process.

    Attributes:
        ratio: intensity in an on-run over that in an off-run.
        on_fraction: share of the time that is on.
        mean_on_s: mean length of an on-run, s.
        cv: of the gaps at constant intensity; 1 is Poisson.
    """

    model_config = STRICT

    process: Literal["mmpp"]
    ratio: float = Field(ge=1, le=1e6)
    on_fraction: float = Field(ge=1e-3, lt=1)
    mean_on_s: float = Field(ge=1e-3, le=1e6)
    cv: float = Field(1.0, ge=0.01, le=100)


Arrivals = Annotated[Poisson | Gamma | OnOff | Mmpp, Field(discriminator="process")]


def arrival_times(
    process: Poisson | Gamma | OnOff | Mmpp, rate: float, duration_s: float, seed: int
) -> npt.NDArray[np.int64]:
    """Arrivals in [0, duration), ps, sorted.

    Args:
        process: the arrival process.
        rate: mean arrivals per second (over the law of the bursts, not over this draw of them).
        duration_s: seconds.
        seed: of the streams "arrivals" and "bursts".

    Raises:
        ValueError: rate or duration out of range.
    """
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate is {rate}; it must be greater than 0 requests per second, and finite")
    if not 0 < duration_s <= MAX_TIME_PS / PS_PER_S:
        raise ValueError(f"duration is {duration_s} s; it must be greater than 0 and at most 100 days")
    if isinstance(process, OnOff | Mmpp):
        from .intensity import reached

        if process.cv == 1.0 and (found := _drawn_at_once(process, rate, duration_s, seed)) is not None:
            return found
        edges, mass = _integrated(process, duration_s, seed)
        points = _points(process.cv, rate * float(mass[-1]), seed)
        seconds = np.empty(len(points))
        seconds = seconds[: reached(points, rate, edges, mass, seconds)]
    else:
        cv = process.cv if isinstance(process, Gamma) else 1.0
        seconds = _points(cv, rate * duration_s, seed) / rate
    seconds *= PS_PER_S
    times: npt.NDArray[np.int64] = np.rint(seconds, out=seconds).astype(np.int64)
    return times[: int(np.searchsorted(times, round(duration_s * PS_PER_S)))]


def _points(cv: float, end: float, seed: int) -> Floats:
    """Points of a unit-rate gamma renewal process in [0, end)."""
    if end > MAX_REQUESTS:
        raise ValueError(
            f"rate and duration ask for about {end:.3g} requests; a trace holds at most {MAX_REQUESTS:,}"
        )
    generator = stream(seed, "arrivals")
    shape = 1.0 / (cv * cv)
    pieces: list[Floats] = []
    last = 0.0
    while last < end:
        chunk = _chunk(generator, shape, end - last)
        chunk += last
        pieces.append(chunk)
        last = float(chunk[-1])
    points = _joined(pieces)
    return points[: int(np.searchsorted(points, end, side="left"))]


def _chunk(generator: np.random.Generator, shape: float, span: float) -> Floats:
    """Sums of up to CHUNK gaps, as far as they are needed to pass `span`; each sum is the same however far that is."""
    sums: list[Floats] = []
    drawn, reached = 0, 0.0
    while drawn < CHUNK and (not sums or reached < span):
        count = min(CHUNK - drawn, int(1.05 * (span - reached)) + 64)
        gaps = generator.standard_gamma(shape, count)
        gaps /= shape
        gaps[0] += reached
        sums.append(np.cumsum(gaps, out=gaps))
        drawn, reached = drawn + count, float(gaps[-1])
    return _joined(sums)


def _joined(pieces: list[Floats]) -> Floats:
    """The pieces one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0)


def _kinds(process: OnOff | Mmpp) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean length (s) and relative intensity of on-runs and off-runs."""
    fraction = process.on_fraction
    if isinstance(process, Mmpp):
        off = 1.0 / (process.ratio * fraction + 1.0 - fraction)
        on = process.ratio * off
    else:
        on, off = 1.0 / fraction, 0.0
    return (process.mean_on_s, process.mean_on_s * (1.0 - fraction) / fraction), (on, off)


def _drawn_at_once(
    process: OnOff | Mmpp, rate: float, duration_s: float, seed: int
) -> npt.NDArray[np.int64] | None:
    """`arrival_times` of a short run with exponential gaps; None if it is too long for that."""
    from . import exponential, intensity
    from .uniform import seed_words

    of_bursts, of_points = seed_words(natural(seed), ("bursts", "arrivals"))
    edges, mass = np.empty((2, RUNS + 1))
    means, intensities = _kinds(process)
    tables, fraction, end = exponential.tables(), process.on_fraction, float(duration_s)
    count, times = intensity.arrivals(
        of_bursts, of_points, fraction, means, intensities, end, float(rate), tables, edges, mass, CHUNK
    )
    return times[:count] if count >= 0 else None


def _integrated(process: OnOff | Mmpp, duration_s: float, seed: int) -> tuple[Floats, Floats]:
    """Edges of the runs (s) that cover [0, duration], and the integral of the relative intensity at them.

    The relative intensity has mean 1 over the stationary law. The first run is stationary: its state is
    on with probability `on_fraction`, and an exponential run's rest has the law of the run.
    """
    fraction = process.on_fraction
    means, intensities = _kinds(process)
    runs_each = process.on_fraction / process.mean_on_s
    if duration_s * runs_each > MAX_REQUESTS:
        raise ValueError(
            f"mean_on_s is {process.mean_on_s:g} s, which makes about {duration_s * runs_each:.3g} bursts in "
            f"{duration_s:g} s; a trace holds at most {MAX_REQUESTS:,}"
        )
    from .intensity import integrate

    generator = stream(seed, "bursts")
    first_on = bool(generator.random() < fraction)
    edges, mass = [np.zeros(1)], [np.zeros(1)]
    while edges[-1][-1] < duration_s:
        drawn, ends, integral = generator.standard_exponential(RUNS), np.empty(RUNS + 1), np.empty(RUNS + 1)
        ends[0], integral[0] = edges[-1][-1], mass[-1][-1]
        count = integrate(drawn, 0 if first_on else 1, means, intensities, duration_s, ends, integral)
        edges.append(ends[1 : count + 1])
        mass.append(integral[1 : count + 1])
    return np.concatenate(edges), np.concatenate(mass)
