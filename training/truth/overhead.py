"""The overhead of a client's way to the engines and back: proxy, HTTP, network. The engine model has none of it.

It is measured where nothing else can differ: on requests that had their instance to themselves, live and in the
replay. The median of (measured − simulated) over them is the overhead. On a decode instance that is never empty a
request waits for the next step: what comes a little later may join a whole step later, or none. There the mean over
all requests stands for the median over the idle ones, of those that are off by no more than one and a half of their
own steps. What was found is shown, and every error is told with it and without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .replay import Replay

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

FEWEST_IDLE = 10
"""Requests with an instance to themselves on which a median can rest."""

FEWEST_BUSY = 100
"""Requests on busy instances on which a mean can rest."""

STEPS = 1.5
"""Steps by which a request on a busy instance may be off."""


@dataclass(frozen=True)
class Part:
    """One stretch of the way.

    Attributes:
        name: in words.
        requests: on which it rests.
        alone: whether they had their instance to themselves.
        value: ps, of measured − simulated: the median if they were alone, else the mean.
        low: ps, the first quartile.
        high: ps, the third quartile.
    """

    name: str
    requests: int
    alone: bool
    value: int
    low: int
    high: int

    @property
    def known(self) -> bool:
        """Whether it rests on enough requests."""
        return self.requests >= (FEWEST_IDLE if self.alone else FEWEST_BUSY)

    def text(self) -> str:
        """What was found, in words."""
        whose = "alone on their instance" if self.alone else "on busy instances"
        found = f"{self.name} {self.value / 1e9:.2f} ms (quartiles {self.low / 1e9:.2f} and {self.high / 1e9:.2f}, "
        return found + f"{self.requests:,} requests {whose})"


@dataclass(frozen=True)
class Overhead:
    """What a client waits beyond what the engines need.

    Attributes:
        parts: stretches of the way, one after the other.
    """

    parts: tuple[Part, ...]

    @property
    def known(self) -> bool:
        """Whether every part rests on enough requests."""
        return all(part.known for part in self.parts)

    @property
    def total(self) -> int:
        """Ps; 0 where it is not known."""
        return sum(part.value for part in self.parts) if self.known else 0

    def text(self) -> str:
        """What was found, in a sentence or two."""
        parts = "; ".join(part.text() for part in self.parts)
        if self.known:
            return f"{self.total / 1e9:.2f} ms: {parts}."
        return (
            f"Not known: {FEWEST_IDLE} requests with an instance to themselves or {FEWEST_BUSY} others are needed "
            f"({parts})."
        )


def measure_overhead(replays: Sequence[Replay], *, aggregated: bool) -> Overhead:
    """The overhead of all runs together.

    Args:
        replays: live runs beside their replays.
        aggregated: whether instances are mixed, so that there is one leg.
    """
    if aggregated:
        whole = [_offsets(each, "decode", None, "first_token") for each in replays]
        return Overhead((_part("to the first token", whole),))
    legs = (
        ("to the end of the prefill", "prefill", None, "prefill_end"),
        ("from there to the first token", "decode", "prefill_end", "first_token"),
    )
    return Overhead(
        tuple(_part(name, [_offsets(each, role, start, end) for each in replays]) for name, role, start, end in legs)
    )


def _part(name: str, offsets: list[tuple[Ints, Ints]]) -> Part:
    idle, busy = (np.concatenate(each) for each in zip(*offsets, strict=True))
    alone = len(idle) >= FEWEST_IDLE or not len(busy)
    pooled = idle if alone else busy
    if not len(pooled):
        return Part(name, 0, alone, 0, 0, 0)
    low, median, high = (round(float(q)) for q in np.quantile(pooled, (0.25, 0.5, 0.75)))
    return Part(name, len(pooled), alone, median if alone else round(float(pooled.mean())), low, high)


def _offsets(run: Replay, role: str, start: str | None, end: str) -> tuple[Ints, Ints]:
    """Measured − simulated length of a stretch, ps: of requests that were alone in it, and of others."""
    measured, simulated = run.live.stored.records, run.simulated
    leaves = "prefill_end" if role == "prefill" else "end"
    known = run.compared.copy()
    alone = np.ones(len(measured), np.bool_)
    spans = []
    for records, arrived in ((measured, run.live.sent), (simulated, simulated["arrival"])):
        begin = arrived if start is None else records[start]
        known &= (begin >= 0) & (records[end] >= 0)
        alone &= alone_on(records, role, begin, records[end], records[leaves])
        if role == "decode" and start is not None:  # Nor was the egress of its prefill instance in use.
            alone &= alone_on(records, "prefill", begin, records[end], records["first_token"])
        spans.append(records[end] - (records["arrival"] if start is None else begin))
    offset: Ints = spans[0] - spans[1]
    gaps = np.maximum(run.live.stored.trace.output.astype(np.int64) - 1, 1)
    step = (measured["last_token"] - measured["first_token"]) / gaps
    near = known & ~alone & (step > 0)
    if near.any():
        near &= np.abs(offset - np.median(offset[near])) <= STEPS * step
    return offset[known & alone], offset[near if role == "decode" else np.zeros_like(near)]


def alone_on(records: npt.NDArray[Any], role: str, begin: Ints, end: Ints, leaves: Ints) -> Bools:
    """Whether nobody else was on a request's instance while it went from `begin` to `end`.

    Others are there from their `begin` until they leave; those of which either is not known are taken as gone at
    their `end` column, and a request whose own stretch is not known is not alone.
    """
    alone = np.zeros(len(records), np.bool_)
    gone = np.where(leaves >= 0, leaves, records["end"])
    for instance in np.unique(records[role][records[role] >= 0]):
        here = np.flatnonzero((records[role] == instance) & (begin >= 0))
        starts, ends = np.sort(begin[here]), np.sort(gone[here])
        came = np.searchsorted(starts, end[here], "left")
        left = np.searchsorted(ends, begin[here], "right")
        alone[here] = (came - left == 1) & (end[here] > begin[here])
    return alone

