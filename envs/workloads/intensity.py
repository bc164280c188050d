"""Runs of constant intensity: their integral, and when it reaches given points, in compiled code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..cluster import PS_PER_S
from ..simulator.compile import entry, inline
from .exponential import exponential
from .uniform import Words, begin, step, uniform

Floats = npt.NDArray[np.float64]


@entry
def integrate(
    drawn: Floats,
    first: int,
    means: tuple[float, float],
    intensities: tuple[float, float],
    end: float,
    edges: Floats,
    mass: Floats,
) -> int:
    """Adds runs of two kinds by turns, up to the first edge at or after `end`.

    Args:
        drawn: (R,) lengths of the runs over their means.
        first: kind of the first, 0 or 1.
        means: mean length of each kind, s.
        intensities: relative intensity of each kind.
        end: s.
        edges: (R + 1,) edges, s; the first is given, the others are written.
        mass: (R + 1,) the integral at them, likewise.

    Returns:
        How many runs were added.
    """
    kind = first
    lasted = integral = 0.0
    for k in range(len(drawn)):
        run = drawn[k] * means[kind]
        lasted += run
        integral += run * intensities[kind]
        edges[k + 1] = edges[0] + lasted
        mass[k + 1] = mass[0] + integral
        if edges[k + 1] >= end:
            return k + 1
        kind = 1 - kind
    return len(drawn)


@entry
def reached(points: Floats, rate: float, edges: Floats, mass: Floats, seconds: Floats) -> int:
    """Writes when `rate` times the integrated intensity reaches each point.

    Args:
        points: (N,) ascending.
        rate: requests per second.
        edges: (R + 1,) edges of the runs of constant intensity, s.
        mass: (R + 1,) the integrated relative intensity there.
        seconds: (N,) to be written.

    Returns:
        How many points lie before the end of the last run; the division may have rounded one up to it.
    """
    run, runs = 0, len(edges) - 1
    slope = (mass[1] - mass[0]) / (edges[1] - edges[0])
    for k in range(len(points)):
        point = points[k] / rate
        if point >= mass[run + 1]:
            run = _run_of(point, mass, run + 1, runs)
            if run == runs:
                return k
            slope = (mass[run + 1] - mass[run]) / (edges[run + 1] - edges[run])
        seconds[k] = edges[run] + (point - mass[run]) / slope
    return len(points)


@inline
def _run_of(point: float, mass: Floats, run: int, runs: int) -> int:
    """The run, this or a later one, in which the integral reaches a point; a point at the end of one is the next's."""
    while run < runs and point >= mass[run + 1]:
        run += 1
    return run


@entry
def arrivals(
    of_bursts: Words,
    of_points: Words,
    on_fraction: float,
    means: tuple[float, float],
    intensities: tuple[float, float],
    end: float,
    rate: float,
    tables: tuple[npt.NDArray[np.uint64], Floats, Floats],
    edges: Floats,
    mass: Floats,
    most: int,
) -> tuple[int, npt.NDArray[np.int64]]:
    """Arrivals in [0, end) whose gaps at constant intensity are exponential: all that this module does, in one pass.

    Args:
        of_bursts: seed words of the runs.
        of_points: seed words of the points.
        on_fraction: probability that the first run is of the first kind.
        means: as for `integrate`.
        intensities: likewise.
        end: s.
        rate: requests per second.
        tables: `exponential.tables`.
        edges: (R + 1,) room for the edges of the runs.
        mass: (R + 1,) likewise.
        most: arrivals that may be drawn.

    Returns:
        How many there are, −1 if the room does not suffice or they are not in order; and the arrivals, ps, first in an
        array that may be longer.
    """
    below, width, density = tables
    state = step(begin(of_bursts))
    kind = 0 if uniform(state) < on_fraction else 1
    lasted = integral = 0.0
    edges[0] = mass[0] = 0.0
    runs = 0
    while lasted < end:
        if runs == len(edges) - 1:
            return -1, np.empty(0, np.int64)
        state, drawn = exponential(state, below, width, density)
        length = drawn * means[kind]
        lasted += length
        integral += length * intensities[kind]
        runs += 1
        edges[runs], mass[runs] = lasted, integral
        kind = 1 - kind
    last = rate * integral
    if not 1.1 * last + 64 < most:
        return -1, np.empty(0, np.int64)
    times = np.empty(int(1.1 * last) + 64, np.int64)
    before = round_ps(end)
    state = begin(of_points)
    run, slope, total, latest = 0, mass[1] / edges[1], 0.0, 0
    for k in range(len(times)):
        state, drawn = exponential(state, below, width, density)
        total += drawn
        if total >= last:
            return k, times
        point = total / rate
        if point >= mass[run + 1]:
            run = _run_of(point, mass, run + 1, runs)
            if run == runs:
                return k, times
            slope = (mass[run + 1] - mass[run]) / (edges[run + 1] - edges[run])
        time = round_ps(edges[run] + (point - mass[run]) / slope)
        if time >= before:
            return k, times
        if time < latest:
            break
        times[k] = latest = time
    return -1, times


@inline
def round_ps(seconds: float) -> int:
    """In ps, rounded to nearest."""
    return int(np.rint(seconds * PS_PER_S))
