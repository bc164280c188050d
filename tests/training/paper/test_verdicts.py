"""The rule of the verdicts, on numbers made for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.training.paper.verdicts import (
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Rule,
    Verdict,
    effect_of,
    joint_p,
    verdict_of,
    verdicts,
)


def traces(mean: float, deviation: float = 1.0, count: int = 50) -> npt.NDArray[np.float64]:
    """Values with exactly this mean and standard deviation."""
    raw = np.random.default_rng(0).normal(size=count)
    return mean + deviation * (raw - raw.mean()) / raw.std(ddof=1)


@pytest.mark.parametrize(
    ("rule", "mean", "deviation", "verdict"),
    [
        (Rule("at_least", 1), 2.0, 1.0, REPRODUCED),
        (Rule("at_least", 1), 0.5, 1.0, NOT_REPRODUCED),  # Surely above zero, and surely too little.
        (Rule("at_least", 1), -2.0, 1.0, NOT_REPRODUCED),  # The other sign.
        (Rule("at_least", 1), 0.9, 1.0, UNDECIDED),  # Above zero, but the least effect may be reached or not.
        (Rule("at_least", 1), 1.5, 9.0, UNDECIDED),  # Enough, but it may be chance.
        (Rule("within", 1), 0.2, 1.0, REPRODUCED),
        (Rule("within", 1), -0.2, 1.0, REPRODUCED),
        (Rule("within", 1), 1.5, 1.0, NOT_REPRODUCED),
        (Rule("within", 1), -1.5, 1.0, NOT_REPRODUCED),
        (Rule("within", 1), 0.2, 9.0, UNDECIDED),
        (Rule("within", 1), 0.9, 1.0, UNDECIDED),
        (Rule("not_below", 0.5), 5.0, 1.0, REPRODUCED),
        (Rule("not_below", 0.5), -0.1, 0.5, REPRODUCED),
        (Rule("not_below", 0.5), -1.0, 1.0, NOT_REPRODUCED),
        (Rule("not_below", 0.5), -0.4, 1.0, UNDECIDED),
    ],
)
def test_each_rule_has_its_three_verdicts(rule: Rule, mean: float, deviation: float, verdict: Verdict) -> None:
    effect = effect_of(traces(mean, deviation), rule)
    assert effect.estimate.mean == pytest.approx(mean)
    assert verdict_of([effect], effect.p, 0.05) == verdict


def test_all_comparisons_of_a_finding_must_hold_and_one_that_fails_decides() -> None:
    good, open_ = effect_of(traces(2), Rule("at_least", 1)), effect_of(traces(0.9), Rule("at_least", 1))
    bad = effect_of(traces(0), Rule("at_least", 1))
    assert joint_p([good, bad]) == bad.p > good.p
    assert verdict_of([good, good], joint_p([good, good]), 0.05) == REPRODUCED
    assert verdict_of([good, open_], joint_p([good, open_]), 0.05) == UNDECIDED
    assert verdict_of([good, bad], joint_p([good, bad]), 0.05) == NOT_REPRODUCED
    assert min((good, open_, bad), key=lambda each: each.room) is bad


def test_what_is_clear_alone_may_be_undecided_among_many() -> None:
    effect = effect_of(traces(1.5, 4.5, 40), Rule("at_least", 1))
    assert 0.01 < effect.p < 0.05
    clear = effect_of(traces(2), Rule("at_least", 1))
    (_, alone), (small, first) = *verdicts([[effect]], 0.05), *verdicts([[clear]], 0.05)
    assert (alone, first) == (REPRODUCED, REPRODUCED)
    both = verdicts([[effect], [clear]], 0.05)  # The smaller p-value is doubled, the larger one stands.
    assert [p for p, _ in both] == pytest.approx([effect.p, 2 * small])
    many = verdicts([[effect]] * 5 + [[clear]], 0.05)
    assert [verdict for _, verdict in many] == [UNDECIDED] * 5 + [REPRODUCED]
    assert many[0][0] == pytest.approx(5 * effect.p)


def test_three_traces_decide_nothing() -> None:
    effect = effect_of([3.0, 3.1, 3.2], Rule("at_least", 1))
    assert effect.p == 0.25 and not effect.estimate.has_interval
    assert verdict_of([effect], effect.p, 0.05) == UNDECIDED
    against = effect_of([-3.0, -3.1, -3.2], Rule("at_least", 1))
    assert verdict_of([against], against.p, 0.05) == UNDECIDED


def test_a_ratio_is_told_in_per_cent() -> None:
    effect = effect_of(np.log(1.5) + traces(0, 0.1), Rule("at_least", 20), ratio=True)
    assert effect.estimate.mean == pytest.approx(50)
    assert effect.estimate.low is not None and effect.estimate.high is not None
    assert 40 < effect.estimate.low < 50 < effect.estimate.high < 60
    assert verdict_of([effect], effect.p, 0.05) == REPRODUCED


def test_delays_without_end_decide_nothing() -> None:
    effect = effect_of([1.0, 2.0, float("nan"), 3.0, 2.0], Rule("at_least", 1))
    assert effect.p == 1 and verdict_of([effect], effect.p, 0.05) == UNDECIDED


def test_rules_are_said_in_words() -> None:
    assert Rule("at_least", 1).text("points") == "at least 1 points"
    assert Rule("within", 0.5).text("points") == "within ±0.5 points"
    assert Rule("not_below", 0.5).text("points") == "not below −0.5 points"
