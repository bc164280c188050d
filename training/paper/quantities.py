"""What findings are about: one number of each run, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..summary import Summary

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """A number of a run.

    Attributes:
        name: in experiment files.
        title: on axes and in tables.
        unit: of its differences.
        scale: of a difference in its own unit to one in `unit`.
        shown: the same for the value itself.
        digits: after the point, of the value.
        read: takes it from a summary.
        spread: whether the run's distance from the median of all runs is meant, in place of the number.
    """

    name: str
    title: str
    unit: str
    scale: float
    shown: float
    digits: int
    read: Callable[[Summary], float]
    spread: bool = False

    def values(self, summaries: Sequence[Summary]) -> Floats:
        """(S,) one per run; not finite where a run has no such number."""
        numbers = np.array([self.read(summary) for summary in summaries], np.float64)
        return np.abs(numbers - np.median(numbers)) if self.spread else numbers


def _missed_tpot(summary: Summary) -> float:
    return summary.missed.tpot / summary.requests if summary.requests else math.nan


def _of_balance(pool: str, number: str) -> Callable[[Summary], float]:
    def read(summary: Summary) -> float:
        balance = summary.balance.get(pool) or summary.balance["mixed"]
        return float(getattr(balance, number))

    return read


def _quantities() -> tuple[Quantity, ...]:
    found = [
        Quantity("goodput", "goodput", "points", 100, 1, 3, lambda s: s.goodput),
        Quantity(
            "goodput-spread", "spread of goodput over the traces", "points", 100, 1, 4, lambda s: s.goodput, spread=True
        ),
        Quantity("ttft-p99", "P99 of TTFT, s", "s", 1, 1, 3, lambda s: s.ttft.p99),
        Quantity("tpot-p99", "P99 of TPOT, ms", "ms", 1e3, 1e3, 1, lambda s: s.tpot.p99),
        Quantity("missed-tpot", "missed TPOT alone, %", "points", 100, 100, 2, _missed_tpot),
    ]
    for pool in ("prefill", "decode"):
        for short, words in (("count", "requests"), ("token", "tokens")):
            title = f"CV of {words} per {pool} instance, %"
            read = _of_balance(pool, f"{short}_cv")
            found.append(Quantity(f"{pool}-{short}-cv", title, "points", 100, 100, 1, read))
    return tuple(found)


QUANTITIES = {quantity.name: quantity for quantity in _quantities()}
"""Quantities by name."""
