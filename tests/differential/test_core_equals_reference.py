"""The fast core gives what the reference gives: every time, every count, every observation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given

from .cases import Case, cases, random_case
from .comparison import compare

BATCH = 100
QUICK = 15
LONG = 300


def seeds(batch: int) -> range:
    return range(batch * BATCH, (batch + 1) * BATCH)


@pytest.mark.parametrize("batch", range(QUICK))
def test_core_equals_reference(batch: int) -> None:
    for seed in seeds(batch):
        compare(random_case(seed))


@given(cases())
def test_core_equals_reference_on_cases_that_shrink(case: Case) -> None:
    compare(case)


def test_a_decode_kill_as_a_prefill_step_ends_wakes_nobody_in_the_past() -> None:
    """Blocks that became free while the prefill instance was busy are taken at the kill, not before."""
    compare(random_case(15110))


@pytest.mark.long
@pytest.mark.parametrize("batch", range(QUICK, LONG))
def test_core_equals_reference_on_many_more_cases(batch: int) -> None:
    for seed in seeds(batch):
        compare(random_case(seed))


def test_the_cases_are_rich_in_what_is_hard(record_property: Callable[[str, object], None]) -> None:
    shares: Counter[str] = Counter()
    sample = range(500)
    for seed in sample:
        facts = dataclasses.asdict(compare(random_case(seed)).facts)
        shares.update(name for name, count in facts.items() if count)
    lines = [f"{name:<20} {count / len(sample):6.1%}" for name, count in shares.most_common()]
    record_property(f"share of {len(sample)} random cases in which it happens", "\n".join(lines))
    for name in ("preemptions", "ties", "egress_queueing", "blocked_reservation", "kills", "lost"):
        assert shares[name] >= 0.05 * len(sample), f"{name} occurs in {shares[name]} of {len(sample)} cases"
    rare = ("repeated_passes", "chunked_recomputes", "mixed_steps", "leases", "reroutes", "rejected")
    assert all(shares[name] > 0 for name in rare)
