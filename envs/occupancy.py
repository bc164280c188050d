"""How many requests were in each phase on an instance over time, and how much KV they held, from their legs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .phases import PHASES, Ints, Leg

Step = tuple[Ints, int, Ints | int]
"""Times at which a series changes, which one, and by how much."""

COUNTERS = {
    "prefill": ("queued", "in prefill", "held"),
    "decode": ("offered", "in transit", "joining", "decoding"),
    "mixed": ("queued", "in prefill", "decoding"),
}
"""Names of the counts of requests by phase (PHASES), for each role."""


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Levels that hold from one time to the next.

    Attributes:
        times: (T,) ps, increasing.
        counters: of each, its name, the names of its series, and their values (T, series).
    """

    times: Ints
    counters: tuple[tuple[str, tuple[str, ...], Ints], ...]


def in_flight(records: npt.NDArray[Any]) -> Occupancy:
    """Requests between arrival and end."""
    times, levels = _levels([(records["arrival"], 0, 1), (records["end"], 0, -1)], 1)
    return Occupancy(times, (("in flight", ("requests",), levels),))


def occupancy(leg: Leg, here: npt.NDArray[np.intp]) -> Occupancy:
    """Requests by phase and tokens of KV of one instance.

    Tokens are those of the prompt from the start of prefill (on a decode instance: of the transfer) to the end, and
    those that decoding adds, spread evenly from the first to the last. A prefill in chunks takes its blocks chunk by
    chunk, and a preempted request gives them back for a while: a record tells neither, so it counts with all of them.

    Args:
        leg: of the instance's role.
        here: the rows that came to this instance.
    """
    series = COUNTERS[leg.role]
    edges = leg.edges[:, here]
    kv, grown, (begin, end) = leg.kv[here], leg.grown[here], leg.growing[:, here]
    tokens = len(series)
    steps: list[Step] = [(edges[1], tokens, kv), (end, tokens, grown), (edges[-1], tokens, -kv - grown)]
    for phase in range(len(PHASES[leg.role])):
        steps += [(edges[phase], phase, 1), (edges[phase + 1], phase, -1)]
    times, levels = _levels(steps, tokens + 1)
    levels[:, tokens] += _growth(times, begin, end, grown)
    return Occupancy(times, (("requests", series, levels[:, :tokens]), ("KV", ("tokens",), levels[:, tokens:])))


def _levels(steps: list[Step], series: int) -> tuple[Ints, Ints]:
    """Times (T,) and levels (T, series)."""
    times = np.unique(np.concatenate([at for at, _, _ in steps]))
    levels = np.zeros((len(times), series), np.int64)
    for at, column, by in steps:
        np.add.at(levels[:, column], np.searchsorted(times, at), by)
    np.cumsum(levels, axis=0, out=levels)
    return times, levels


def _growth(times: Ints, begin: Ints, end: Ints, grown: Ints) -> Ints:
    """Tokens that requests have added by each time and that are not yet in the levels, rounded."""
    some = (grown > 0) & (end > begin)
    begin, end, grown = begin[some], end[some], grown[some]
    if not len(times) or not len(grown):
        return np.zeros(len(times), np.int64)
    pace = grown / (end - begin)
    # Σ pace · (t − begin) over those that grow at t, as t · Σ pace − Σ pace · begin; times from the first, for digits.
    since = (begin - times[0]).astype(np.float64)
    paces, starts = np.zeros(len(times)), np.zeros(len(times))
    for at, sign in ((begin, 1.0), (end, -1.0)):
        place = np.searchsorted(times, at)
        np.add.at(paces, place, sign * pace)
        np.add.at(starts, place, sign * pace * since)
    added = (times - times[0]) * np.cumsum(paces) - np.cumsum(starts)
    rounded: Ints = np.rint(added).astype(np.int64)
    return rounded
