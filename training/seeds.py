"""Seed ranges: which traces may be used for what, so that a claim rests on traces nobody tuned on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SeedRange:
    """Seeds `first` to `last`, both included, and what they are for."""

    name: str
    first: int
    last: int
    purpose: str

    def __contains__(self, seed: object) -> bool:
        """Whether a seed lies in the range."""
        return isinstance(seed, int) and self.first <= seed <= self.last

    def take(self, count: int) -> range:
        """The first `count` seeds of the range.

        Raises:
            ValueError: the range has fewer, or `count` is below 1.
        """
        return seeds_from(self.first, count, within=self)


TUNING = SeedRange("tuning", 0, 9_999, "training and tuning")
VALIDATION = SeedRange("validation", 10_000, 10_099, "choosing checkpoints, hyper-parameters and heuristics")
SATURATION = SeedRange("saturation", 20_000, 20_099, "finding rates and choosing scenarios")
HELD_OUT = SeedRange("held-out", 30_000, 30_099, "claims")
RANGES = (TUNING, VALIDATION, SATURATION, HELD_OUT)

MAX_SEED = (1 << 32) - 1
"""Largest seed."""

MOST_SEEDS = 100_000
"""Most seeds at a time: each is a file."""

CLAIM_SEEDS = 50
"""Fewest held-out seeds a claim rests on."""

CLAIM_DURATION_S = 1_800.0
"""Fewest simulated seconds in the measurement window of each run of a claim."""


def seeds_from(first: int, count: int, within: SeedRange | None = None) -> range:
    """Consecutive seeds.

    Args:
        first: first seed, ≥ 0.
        count: how many, ≥ 1.
        within: range that must hold them all.

    Raises:
        ValueError: a bad count or first seed, or seeds outside `within`.
    """
    if count < 1:
        raise ValueError(f"seeds is {count}; it must be at least 1")
    if count > MOST_SEEDS:
        raise ValueError(f"seeds is {count}; it must be at most {MOST_SEEDS}")
    if first < 0:
        raise ValueError(f"first seed is {first}; it must not be negative")
    if first + count - 1 > MAX_SEED:
        raise ValueError(f"last seed is {first + count - 1}; it must be at most {MAX_SEED}")
    if within is not None and not (first in within and first + count - 1 in within):
        raise ValueError(
            f"seeds {first} to {first + count - 1} leave the {within.name} range; "
            f"it is {within.first} to {within.last}"
        )
    return range(first, first + count)


def refuse_held_out(seeds: Iterable[int], activity: str) -> None:
    """Refuses held-out seeds for anything but a claim.

    Args:
        seeds: the seeds about to be used.
        activity: what they are to be used for, to complete "… may not use it".

    Raises:
        ValueError: one of them is held out.
    """
    for seed in seeds:
        if seed in HELD_OUT:
            raise ValueError(
                f"seed {seed} is held out for claims ({HELD_OUT.first} to {HELD_OUT.last}); "
                f"{activity} may not use it"
            )


def check_claim(seeds: range, duration_s: float) -> None:
    """Checks that an evaluation is large enough, and on the right seeds, to carry a claim.

    Args:
        seeds: seeds of the evaluation.
        duration_s: length of the measurement window, seconds.

    Raises:
        ValueError: seeds that are not all held out, too few of them, or too short a window.
    """
    seeds_from(seeds.start, len(seeds), within=HELD_OUT)
    if len(seeds) < CLAIM_SEEDS:
        raise ValueError(f"seeds is {len(seeds)}; a claim needs at least {CLAIM_SEEDS} held-out seeds")
    if not duration_s >= CLAIM_DURATION_S:
        raise ValueError(
            f"duration is {duration_s:g} s; a claim needs at least {CLAIM_DURATION_S:g} simulated seconds"
        )
