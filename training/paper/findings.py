"""Findings: their comparisons from the runs, and the verdict on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .config import Arm, Comparison, ExperimentConfig, Finding
from .quantities import QUANTITIES, Floats
from .runs import Measured
from .verdicts import Effect, Rule, Verdict, effect_of, verdicts


@dataclass(frozen=True)
class Compared:
    """A comparison that was made.

    Attributes:
        comparison: as written.
        text: in words.
        unit: of the effect.
        effect: what was found.
    """

    comparison: Comparison
    text: str
    unit: str
    effect: Effect


@dataclass(frozen=True)
class Found:
    """A finding that was looked at.

    Attributes:
        finding: as written.
        compared: its comparisons.
        p: of the finding, adjusted for the number of findings.
        verdict: on it.
        seeds: traces that it rests on.
    """

    finding: Finding
    compared: tuple[Compared, ...]
    p: float
    verdict: Verdict
    seeds: int

    @property
    def weakest(self) -> Compared:
        """The comparison that is furthest from what the claim says, or least far inside it."""
        return min(self.compared, key=lambda each: each.effect.room)


def find(config: ExperimentConfig, findings: Sequence[Finding], measured: Measured) -> tuple[Found, ...]:
    """Looks at findings together.

    Args:
        config: the experiment.
        findings: those that are looked at; p-values are adjusted for their number.
        measured: the runs.
    """
    compared = [compare(finding, measured) for finding in findings]
    judged = verdicts([[each.effect for each in some] for some in compared], config.level)
    return tuple(
        Found(finding, some, p, verdict, len(some[0].effect.estimate.values))
        for finding, some, (p, verdict) in zip(findings, compared, judged, strict=True)
    )


def compare(finding: Finding, measured: Measured) -> tuple[Compared, ...]:
    """The comparisons of a finding."""
    return tuple(_compared(finding, each, measured) for each in finding.comparisons)


def _compared(finding: Finding, comparison: Comparison, measured: Measured) -> Compared:
    kind = QUANTITIES[comparison.quantity]

    def values(arm: Arm) -> Floats:
        return measured.values(finding.placed(arm), comparison.quantity, finding.seeds)

    found = values(comparison.of)
    if comparison.ratio and comparison.against is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(found) - np.log(values(comparison.against))
    else:
        with np.errstate(invalid="ignore"):  # Two delays without end have no difference.
            if comparison.against is not None:
                found = found - values(comparison.against)
            if comparison.beyond is not None:
                found = found - (values(comparison.beyond.of) - values(comparison.beyond.against))
        found = kind.scale * found
    rule = Rule(comparison.kind, comparison.margin)
    unit = "%" if comparison.ratio else kind.unit
    return Compared(comparison, in_words(finding, comparison), unit, effect_of(found, rule, ratio=comparison.ratio))


def in_words(finding: Finding, comparison: Comparison) -> str:
    """Such as `marginal-cost − least-loaded in chat`."""

    def word(arm: Arm) -> str:
        where = "" if arm.condition in ("", finding.condition) else f" in {arm.condition}"
        return f"{arm.policy}{where}"

    text = word(comparison.of)
    if comparison.against is not None:
        text += f"{' / ' if comparison.ratio else ' − '}{word(comparison.against)}"
    if comparison.beyond is not None:
        text = f"({text}) − ({word(comparison.beyond.of)} − {word(comparison.beyond.against)})"
    return text if comparison.quantity == "goodput" else f"{text}: {QUANTITIES[comparison.quantity].title}"
