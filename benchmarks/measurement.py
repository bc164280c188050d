"""A measurement: a number with its spread over repeats."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict


class Result(BaseModel):
    """One measured number.

    Attributes:
        name: what was measured, such as `simulator/2P4D/marginal-cost`.
        value: median over the repeats.
        unit: of `value`, `min` and `max`.
        min: lowest.
        max: highest.
        repeats: how many were measured.
        details: what belongs beside the number, such as goodput.
        command: makes the number again.
        baseline: the value of the report that this one is compared with.
        gain: how many times better than the baseline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float
    unit: str
    min: float
    max: float
    repeats: int
    details: dict[str, int | float] = {}
    command: str = ""
    baseline: float | None = None
    gain: float | None = None

    @classmethod
    def of(cls, name: str, unit: str, values: Sequence[float], **details: int | float) -> Result:
        """The result of some repeats.

        Args:
            name: what was measured.
            unit: of the values.
            values: one per repeat, at least one.
            **details: what belongs beside the number.
        """
        return cls(
            name=name,
            value=statistics.median(values),
            unit=unit,
            min=min(values),
            max=max(values),
            repeats=len(values),
            details=details,
        )

    @property
    def more_is_better(self) -> bool:
        """Whether the number is a speed, how many times higher one is, or a capacity; else it is a cost."""
        return self.unit.endswith("/s") or self.unit in ("×", "requests")


@contextmanager
def pinned() -> Iterator[None]:
    """Keeps this process, and those that it starts, on one core, where the system allows that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    # Systems tend to serve interrupts on the first core.
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def at_least(name: str, value: int, low: int = 1) -> None:
    """Refuses a count that is too small.

    Raises:
        ValueError: names the field, the value and what is allowed.
    """
    if value < low:
        raise ValueError(f"{name} is {value}; it must be at least {low}")


def count_name(count: int) -> str:
    """A count in a name: 1M, 250k, 300."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count and count % size == 0:
            return f"{count // size}{letter}"
    return str(count)
