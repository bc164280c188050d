"""Runs of constant intensity: their integral, and when it reaches given points, in compiled code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..simulator.compile import entry

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
        if point >= mass[run + 1]:  # a point at the end of a run counts to the next
            while point >= mass[run + 1]:
                run += 1
                if run == runs:
                    return k
            slope = (mass[run + 1] - mass[run]) / (edges[run + 1] - edges[run])
        seconds[k] = edges[run] + (point - mass[run]) / slope
    return len(points)
