"""What is compared: TTFT, TPOT and E2E of each request, and the two stages of its TTFT, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quantity:
    """A time of a request.

    Attributes:
        name: one word, for columns.
        title: for people.
        unit: in which people read it.
        scale: so many of it are a second.
        overhead: whether the overhead of the client's way is part of what was measured.
    """

    name: str
    title: str
    unit: str
    scale: float
    overhead: bool


TTFT = Quantity("ttft", "TTFT", "s", 1.0, True)
TPOT = Quantity("tpot", "TPOT", "ms", 1e3, False)
E2E = Quantity("e2e", "E2E", "s", 1.0, True)

QUANTITIES = (TTFT, TPOT, E2E)


def values(records: npt.NDArray[Any], output: Ints, quantity: Quantity, arrival: Ints | None = None) -> Floats:
    """A quantity of every request, seconds; NaN where it is not known.

    Args:
        records: (N,) of dtype RECORD.
        output: (N,) tokens.
        quantity: which.
        arrival: (N,) ps, from which TTFT and E2E count; by default the records'.
    """
    start = records["arrival"] if arrival is None else arrival
    first, last = records["first_token"], records["last_token"]
    known = first >= 0 if quantity is TTFT else (first >= 0) & (last >= 0)
    if quantity is TTFT:
        span = first - start
    elif quantity is E2E:
        span = last - start
    else:
        known &= output > 1
        span = (last - first) / np.maximum(output - 1, 1)
    return np.where(known, span / PS_PER_S, np.nan)
