"""Seed ranges keep claims apart from tuning."""

from __future__ import annotations

from itertools import pairwise

import pytest

from disaggroute.training.seeds import (
    HELD_OUT,
    RANGES,
    SATURATION,
    check_claim,
    refuse_held_out,
    seeds_from,
)


def test_the_ranges_do_not_overlap() -> None:
    ordered = sorted(RANGES, key=lambda r: r.first)
    assert all(a.last < b.first for a, b in pairwise(ordered))


def test_a_range_knows_its_seeds_and_gives_the_first_of_them() -> None:
    assert 30_000 in HELD_OUT and 30_099 in HELD_OUT and 30_100 not in HELD_OUT
    assert list(SATURATION.take(3)) == [20_000, 20_001, 20_002]


def test_more_seeds_than_a_range_holds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seeds 20000 to 20100 leave the saturation range"):
        SATURATION.take(101)


@pytest.mark.parametrize(
    ("first", "count", "words"),
    [
        (0, 0, "seeds is 0"),
        (0, 10**9, "seeds is 1000000000; it must be at most 100000"),
        (-1, 3, "first seed is -1"),
    ],
)
def test_bad_counts_and_first_seeds_are_refused(first: int, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        seeds_from(first, count)


def test_held_out_seeds_are_refused_for_anything_but_a_claim() -> None:
    refuse_held_out(range(29_990, 30_000), "saturate")
    with pytest.raises(ValueError, match=r"seed 30000 is held out .* saturate may not use it"):
        refuse_held_out(range(29_990, 30_001), "saturate")


def test_a_claim_needs_fifty_held_out_seeds_and_half_an_hour_each() -> None:
    check_claim(range(30_000, 30_050), 1_800)
    with pytest.raises(ValueError, match="at least 50 held-out seeds"):
        check_claim(range(30_000, 30_049), 1_800)
    with pytest.raises(ValueError, match="at least 1800 simulated seconds"):
        check_claim(range(30_000, 30_050), 1_799)
    with pytest.raises(ValueError, match="leave the held-out range"):
        check_claim(range(10_000, 10_050), 1_800)
