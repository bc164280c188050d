"""A running median in constant memory: the P² algorithm (Jain and Chlamtac, CACM 28(10), 1985)."""

from __future__ import annotations

import numpy as np

from ...envs.simulator.compile import inline, rare
from ...envs.simulator.memory import ld, ldf, st, stf

MEDIAN_WORDS = 11
"""Count, five marker heights (float64), five marker positions."""


@inline
def median_of(m: int) -> float:
    """The running median at address m; +inf before the first value."""
    count = ld(m, 0)
    if count == 0:
        return np.inf
    if count < 5:  # heights are sorted: the lower median
        return ldf(m, 1 + ((count - 1) >> 1))
    return ldf(m, 3)


@rare
def observe(m: int, x: float) -> None:
    """Adds a value."""
    count = ld(m, 0)
    st(m, 0, count + 1)
    if count < 5:
        insert(m, count, x)
        return
    cell = 0
    if x < ldf(m, 1):
        stf(m, 1, x)
    elif x >= ldf(m, 5):
        stf(m, 5, x)
        cell = 3
    else:
        while x >= ldf(m, 2 + cell):
            cell += 1
    for i in range(cell + 1, 5):
        st(m, 6 + i, ld(m, 6 + i) + 1)
    for i in range(1, 4):
        adjust(m, i, 1.0 + 0.25 * i * count)  # desired position of marker i among count + 1 values
    return


@inline
def insert(m: int, count: int, x: float) -> None:
    """One of the first five values: kept sorted; the fifth sets the positions."""
    i = count
    while i > 0 and ldf(m, i) > x:
        stf(m, i + 1, ldf(m, i))
        i -= 1
    stf(m, i + 1, x)
    for j in range(5):
        st(m, 6 + j, j + 1)


@inline
def adjust(m: int, i: int, desired: float) -> None:
    """Moves marker i by one towards its desired position, along a parabola through its neighbours."""
    here, left, right = ld(m, 6 + i), ld(m, 5 + i), ld(m, 7 + i)
    off = desired - here
    if (off >= 1.0 and right - here > 1) or (off <= -1.0 and left - here < -1):
        step = 1 if off > 0.0 else -1
        q, ql, qr = ldf(m, 1 + i), ldf(m, i), ldf(m, 2 + i)
        up = (here - left + step) * (qr - q) / (right - here)
        down = (right - here - step) * (q - ql) / (here - left)
        moved = q + step / (right - left) * (up + down)
        if not ql < moved < qr:  # fall back to the straight line
            moved = q + step * (ldf(m, 1 + i + step) - q) / (ld(m, 6 + i + step) - here)
        stf(m, 1 + i, moved)
        st(m, 6 + i, here + step)
