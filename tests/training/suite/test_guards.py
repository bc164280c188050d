"""Guards: what disqualifies, and what does not."""

from __future__ import annotations

import math

import pytest

from disaggroute.training.suite.guards import guard
from disaggroute.training.summary import Balance, Misses, Quantiles, Share, Summary


def summary(tight: int = 90, loose: int = 90, ttft: float = 1.0, slowdown: float = 4.0, rejected: int = 0) -> Summary:
    """A run of 200 requests, half of each class."""
    classes = {"tight": Share(requests=100, met=tight), "loose": Share(requests=100, met=loose)}
    tails = {"ttft": ttft, "slowdown": slowdown}
    quantiles = {name: Quantiles(p50=0, p90=0, p99=0, p999=tails.get(name, 0)) for name in (*tails, "tpot", "e2e")}
    return Summary(
        requests=200,
        met=tight + loose,
        failed=0,
        rejected=rejected,
        missed=Misses(ttft=200 - tight - loose, tpot=0, both=0),
        ceiling=1.0,
        by_class=classes,
        by_family={"chat": Share(requests=200, met=tight + loose)},
        ceilings={},
        **quantiles,
        slowdown_mean=1.0,
        itl_p99=0.0,
        max_stall=0.0,
        beyond_3x=0.0,
        max_delay=0.0,
        scaled={},
        balance={"decode": Balance(count_cv=0, count_max=1, token_cv=0, token_max=1)},
        goodput_per_gpu=1.0,
        preemptions=0.0,
        segment_requests=(200,),
        segment_met=(tight + loose,),
    )


USUAL = [summary()]


@pytest.mark.parametrize(
    ("mine", "breaches"),
    [
        (summary(), ()),
        (summary(tight=85, loose=99), ()),
        (summary(tight=84, loose=99), ("tight -6.0",)),
        (summary(ttft=1.5, slowdown=6.0), ()),
        (summary(ttft=1.6), ("TTFT × 1.6",)),
        (summary(slowdown=math.inf), ("slowdown × ∞",)),
        (summary(rejected=3), ("rejected 3",)),
        (summary(loose=80, ttft=9, slowdown=40), ("loose -10.0", "TTFT × 9.0", "slowdown × 10.0")),
    ],
)
def test_a_group_s_loss_the_tails_and_rejections_disqualify(mine: Summary, breaches: tuple[str, ...]) -> None:
    found = guard([mine], reference=USUAL, heuristic=USUAL, zero=USUAL)
    assert found.breaches == breaches


def test_what_round_robin_rejects_as_well_is_nobody_s_fault() -> None:
    down = [summary(rejected=5)]
    assert guard(down, reference=down, heuristic=down, zero=down).breaches == ()
    assert guard([summary(rejected=6)], reference=down, heuristic=down, zero=down).breaches == ("rejected 6",)


def test_an_endless_tail_of_the_heuristic_holds_nobody() -> None:
    endless = [summary(slowdown=math.inf)]
    found = guard(endless, reference=USUAL, heuristic=endless, zero=USUAL)
    assert math.isnan(found.slowdown_ratio) and found.breaches == ()


def test_the_reference_is_not_compared_with_itself() -> None:
    found = guard(USUAL, reference=None, heuristic=USUAL, zero=USUAL)
    assert found.worst is None and found.breaches == ()


def test_losses_and_tails_are_means_over_the_seeds() -> None:
    mine = [summary(tight=82, ttft=2.0), summary(tight=90, ttft=0.8)]
    found = guard(mine, reference=USUAL * 2, heuristic=USUAL * 2, zero=USUAL * 2)
    assert found.worst is not None and found.worst.difference == pytest.approx(-0.04)
    assert found.ttft_ratio == pytest.approx(1.4) and found.breaches == ()


def test_a_mean_beyond_a_limit_disqualifies_only_with_its_whole_interval() -> None:
    usual = USUAL * 8
    clear = [summary(ttft=value, tight=tight) for value, tight in zip((2.0, 2.4) * 4, (80, 82) * 4, strict=True)]
    assert guard(clear, reference=usual, heuristic=usual, zero=usual).breaches == ("tight -9.0", "TTFT × 2.2")
    # One bad trace of eight: the means are the same, and another eight would have others.
    odd = [summary(ttft=value, tight=tight) for value, tight in zip([1.0] * 7 + [10.6], [90] * 7 + [18], strict=True)]
    found = guard(odd, reference=usual, heuristic=usual, zero=usual)
    assert found.ttft_ratio == pytest.approx(2.2) and found.worst is not None
    assert found.worst.difference == pytest.approx(-0.09) and found.breaches == ()
    # On fewer than four traces there is no interval, and the mean decides.
    assert guard(odd[-3:], reference=usual[:3], heuristic=usual[:3], zero=usual[:3]).breaches != ()


def test_the_group_that_loses_most_is_named_among_those_that_lose_too_much() -> None:
    pairs = [(83, 90)] * 7 + [(83, 10)]
    mine = [summary(tight=tight, loose=loose) for tight, loose in pairs]
    found = guard(mine, reference=USUAL * 8, heuristic=USUAL * 8, zero=USUAL * 8)
    assert found.worst is not None and found.worst.group == "loose" and found.breaches == ("tight -7.0",)
