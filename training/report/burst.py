"""The burst that a timeline shows: which requests it holds, and where the misses among them lost their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ...envs.window import Window
from ..stored_records import StoredRecords

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

BURST_S = 60.0
"""Length of what a timeline shows, seconds."""

MOST_POLICIES = 4
"""Policies that a timeline has room for."""

STEP_S = 1.0
"""Grid on which a burst may start, seconds."""


@dataclass(frozen=True)
class Burst:
    """Part of the measurement window.

    Attributes:
        start: ps.
        end: ps.
        why: what singles it out, to complete "the 60 s in which …".
    """

    start: int
    end: int
    why: str

    def holds(self, run: StoredRecords) -> Bools:
        """(N,) which requests are due in it."""
        return (run.due >= self.start) & (run.due < self.end)


def worst_burst(runs: Mapping[str, StoredRecords], window: Window, length_s: float = BURST_S) -> Burst:
    """The stretch of the window that tells most: where the misses of the policies differ most.

    With one policy, or where all miss alike, it is the one with the most misses; without misses the one with
    the most arrivals. Of equals that follow one another the middle one is taken, so that a short burst lies in
    the middle.

    Args:
        runs: records of policies on one trace.
        window: measurement window.
        length_s: of the stretch; the whole window if it is shorter.
    """
    length, step = round(length_s * PS_PER_S), round(STEP_S * PS_PER_S)
    starts = np.arange(window.start, max(window.end - length, window.start) + 1, step)
    some = next(iter(runs.values()))
    missed = np.array([_within(run.due[run.measured & ~run.met], starts, length) for run in runs.values()])
    arrived = _within(some.due[some.measured], starts, length)
    spread = missed.max(axis=0) - missed.min(axis=0)
    if spread.any():
        place, why = _middle_of_best(spread), "the policies' misses differ most"
    elif missed.any():
        place, why = _middle_of_best(missed.sum(axis=0)), "most requests miss their targets"
    else:
        place, why = _middle_of_best(arrived), "most requests arrive"
    start = int(starts[place])
    return Burst(start, min(start + length, window.end), why)


@dataclass(frozen=True, eq=False)
class Misses:
    """Requests that missed a target, by the pool that cost them the time.

    Attributes:
        before: (N,) on the prefill instance: TTFT missed, and most of it passed before the end of the prefill; or
            failed until then.
        after: (N,) on the decode instance: the other misses.
    """

    before: Bools
    after: Bools


def split_misses(run: StoredRecords, which: Bools) -> Misses:
    """Says where the misses among some requests lost their time; rejected ones are in neither part."""
    records, first = run.records, run.records["first_token"]
    missed = which & ~run.met & (records["prefill"] >= 0)
    ended = records["prefill_end"] >= 0
    ttft = first - records["arrival"]
    late = (first >= 0) & (ttft > run.trace.ttft_target)
    mostly_before = 2 * (records["prefill_end"] - records["arrival"]) > ttft
    before = missed & (~ended | (late & mostly_before))
    return Misses(before, missed & ~before)


def choose_policies(goodput: Mapping[str, float], baseline: str, most: int = MOST_POLICIES) -> tuple[str, ...]:
    """At most so many policies, in their order: the baseline, the best, the worst, then the first of the others.

    Args:
        goodput: of each policy.
        baseline: its label; ignored when it is not among them.
        most: how many.
    """
    if len(goodput) <= most:
        return tuple(goodput)
    ranked = sorted(goodput, key=lambda label: -goodput[label])
    wanted = [label for label in (baseline, ranked[0], ranked[-1], *goodput) if label in goodput]
    chosen = list(dict.fromkeys(wanted))[:most]
    return tuple(label for label in goodput if label in chosen)


def _within(times: Ints, starts: Ints, length: int) -> Ints:
    """How many sorted times lie in [start, start + length) of each start."""
    counts: Ints = np.searchsorted(times, starts + length) - np.searchsorted(times, starts)
    return counts


def _middle_of_best(values: Ints) -> int:
    """Middle of the first run of places with the largest value."""
    best = np.flatnonzero(values == values.max())
    run = best[: int(np.argmax(np.append(np.diff(best) != 1, True))) + 1]
    return int(run[(len(run) - 1) // 2])
