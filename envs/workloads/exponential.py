"""The exponential numbers of NumPy's generators, in compiled code: the same bits.

The ziggurat of G. Marsaglia and W. W. Tsang, "The Ziggurat Method for Generating Random Variables" (2000): 256 layers
of one area cover the density e^−x. A layer and a place in it are drawn at once; nearly always the place lies where the
layer is wholly below the density, and that is the number.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..simulator.compile import inline, rare
from .uniform import State, step, uniform, word

Floats = npt.NDArray[np.float64]
Tables = tuple[npt.NDArray[np.uint64], Floats, Floats]

LAYERS = 256

_TAIL = 7.69711747013104972
"""Where the tail begins."""


@cache
def tables() -> Tables:
    """Per layer: up to which place it is below the density; the width of a place; the density at its edge.

    Places have 53 bits. The edges are those at which all layers, the tail in the lowest, have the area v:
    x_i · (e^−x_(i−1) − e^−x_i) = v.
    """
    with localcontext() as context:
        context.prec = 40
        tail = Decimal("7.697117470131049714044628048")
        area = (tail + 1) * (-tail).exp()
        edges = [tail]
        for _ in range(LAYERS - 2):
            edges.append(-(area / edges[-1] + (-edges[-1]).exp()).ln())
        edges = [area * tail.exp(), *reversed(edges)]
        below = [tail / edges[0], Decimal(0), *(a / b for a, b in pairwise(edges[1:]))]
        places = Decimal(1 << 53)
        density = [Decimal(1), *((-edge).exp() for edge in edges[1:])]
        return (
            np.array([2 * int(places / 2 * share) for share in below], np.uint64),
            np.array([float(edge / places) for edge in edges]),
            np.array([float(value) for value in density]),
        )


@inline
def exponential(state: State, below: Any, width: Any, density: Any) -> tuple[State, float]:
    """The next state, and a number of mean 1."""
    state = step(state)
    drawn = word(state) >> np.uint64(3)
    layer = drawn & np.uint64(LAYERS - 1)
    place = drawn >> np.uint64(8)
    value = np.float64(place) * width[layer]
    if place < below[layer]:
        return state, value
    return _seldom(state, layer, value, below, width, density)


@rare
def _seldom(state: State, layer: Any, value: float, below: Any, width: Any, density: Any) -> tuple[State, float]:
    """What follows where the place may lie above the density."""
    while True:
        state = step(state)
        if layer == 0:
            return state, _TAIL - np.log1p(-uniform(state))
        if (density[layer - 1] - density[layer]) * uniform(state) + density[layer] < np.exp(-value):
            return state, value
        state = step(state)
        drawn = word(state) >> np.uint64(3)
        layer = drawn & np.uint64(LAYERS - 1)
        place = drawn >> np.uint64(8)
        value = np.float64(place) * width[layer]
        if place < below[layer]:
            return state, value
