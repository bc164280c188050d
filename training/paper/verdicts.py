"""Verdicts: when a claim counts as reproduced.

A comparison has one number per trace, and one rule about their mean, the effect:

    at_least m    claim: effect ≥ m        tested against: effect = 0, two-sided
    within m      claim: −m ≤ effect ≤ m   tested against: effect ≤ −m, and effect ≥ m
    not_below m   claim: effect ≥ −m       tested against: effect ≤ −m

Tests are sign-flip tests; a finding of several comparisons has the largest of their p-values, since all must hold
(intersection-union test), and p-values are adjusted over the findings (Holm). A finding is

    reproduced       if each effect is what its claim says, and the adjusted p-value is below α;
    not reproduced   if the 95 % interval of an effect lies outside what its claim says;
    undecided        otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..statistics import Estimate, holm, mean_over_seeds, sign_flip_p

Verdict = Literal["reproduced", "not reproduced", "undecided"]

REPRODUCED: Verdict = "reproduced"
NOT_REPRODUCED: Verdict = "not reproduced"
UNDECIDED: Verdict = "undecided"


@dataclass(frozen=True)
class Rule:
    """What must hold of an effect.

    Attributes:
        kind: at_least, within or not_below.
        margin: in the unit of the effect.
    """

    kind: str
    margin: float

    @property
    def bounds(self) -> tuple[float, float]:
        """What the claim says: the least and the largest effect."""
        if self.kind == "within":
            return -self.margin, self.margin
        return (self.margin if self.kind == "at_least" else -self.margin), math.inf

    def text(self, unit: str) -> str:
        """The rule in words."""
        words = {"at_least": "at least", "within": "within ±", "not_below": "not below −"}[self.kind]
        return f"{words}{' ' if self.kind == 'at_least' else ''}{self.margin:g} {unit}"


@dataclass(frozen=True)
class Effect:
    """What was found of a comparison.

    Attributes:
        estimate: mean over the traces, with its interval.
        p: of the test against what the claim denies.
        rule: what must hold.
    """

    estimate: Estimate
    p: float
    rule: Rule

    @property
    def holds(self) -> bool:
        """Whether the estimate is what the claim says."""
        low, high = self.rule.bounds
        return low <= self.estimate.mean <= high

    @property
    def assured(self) -> bool:
        """Whether the interval lies inside what the claim says."""
        low, high = self.rule.bounds
        if self.estimate.low is None or self.estimate.high is None:
            return False
        return self.estimate.low >= low and self.estimate.high <= high

    @property
    def excluded(self) -> bool:
        """Whether the interval lies outside what the claim says."""
        low, high = self.rule.bounds
        if self.estimate.low is None or self.estimate.high is None:
            return False
        return self.estimate.high < low or self.estimate.low > high

    @property
    def room(self) -> float:
        """How far the estimate is inside what the claim says, over the margin; the least is the weakest comparison."""
        low, high = self.rule.bounds
        distance = min(self.estimate.mean - low, high - self.estimate.mean)
        return distance / (self.rule.margin or 1.0)


def effect_of(values: npt.ArrayLike, rule: Rule, *, ratio: bool = False) -> Effect:
    """Tests a comparison.

    Args:
        values: (S,) one per trace, in the unit of the rule; of a ratio the logarithms.
        rule: what must hold.
        ratio: whether the effect is the change in per cent that the logarithms stand for; the rule is then at_least.
    """
    sample = np.asarray(values, np.float64)
    margin = rule.margin
    if rule.kind == "at_least":
        p = sign_flip_p(sample)
    elif rule.kind == "within":
        p = max(sign_flip_p(sample + margin, greater=True), sign_flip_p(margin - sample, greater=True))
    else:
        p = sign_flip_p(sample + margin, greater=True)
    estimate = mean_over_seeds(sample)
    if ratio:
        low, high = (None if end is None else _per_cent(end) for end in (estimate.low, estimate.high))
        estimate = Estimate(_per_cent(estimate.mean), low, high, tuple(_per_cent(value) for value in sample.tolist()))
    return Effect(estimate, p, rule)


def joint_p(effects: Sequence[Effect]) -> float:
    """P-value of a finding, all of whose comparisons must hold."""
    return max(effect.p for effect in effects)


def verdict_of(effects: Sequence[Effect], adjusted: float, level: float) -> Verdict:
    """The verdict on a finding.

    Args:
        effects: of its comparisons.
        adjusted: p-value of the finding, adjusted for the number of findings.
        level: α.
    """
    if all(effect.holds for effect in effects) and adjusted < level:
        return REPRODUCED
    return NOT_REPRODUCED if any(effect.excluded for effect in effects) else UNDECIDED


def verdicts(findings: Sequence[Sequence[Effect]], level: float) -> list[tuple[float, Verdict]]:
    """Adjusted p-value and verdict of each finding.

    Args:
        findings: the effects of each.
        level: α.
    """
    adjusted = holm([joint_p(effects) for effects in findings])
    return [(p, verdict_of(effects, p, level)) for effects, p in zip(findings, adjusted, strict=True)]


def _per_cent(logarithm: float) -> float:
    return 100 * math.expm1(logarithm)
