"""An experiment that has run: what tables, figures and the page need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..policy_style import Style, policy_styles
from .config import Arm, FigureConfig, Published, Series
from .findings import Found
from .plan import Plan
from .runs import Measured


@dataclass(frozen=True)
class Shown:
    """A number of a figure: of a policy in a condition.

    Attributes:
        series: the policy.
        place: index of the place.
        arm: policy and condition.
        quantity: name.
    """

    series: Series
    place: int
    arm: Arm
    quantity: str


@dataclass(frozen=True)
class Residual:
    """A goodput of the study and ours.

    Attributes:
        published: the study's.
        ours: mean over the traces.
    """

    published: Published
    ours: float

    @property
    def difference(self) -> float:
        """Ours less the study's; of a range the nearest end, and nothing inside it."""
        low, high = self.published.ends
        return self.ours - min(max(self.ours, low), high)


@dataclass(frozen=True)
class Winner:
    """Who is best in a condition of which the study has several policies.

    Attributes:
        condition: name.
        study: the policy that it measured as best, and its goodput.
        ours: the best of the same policies here, and its goodput.
        of: the policies.
    """

    condition: str
    study: tuple[str, float]
    ours: tuple[str, float]
    of: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both name one policy."""
        return self.study[0] == self.ours[0]


@dataclass(frozen=True)
class Experiment:
    """An experiment that has run.

    Attributes:
        plan: what was run.
        measured: the runs.
        found: the findings.
        command: the command line that makes it again.
    """

    plan: Plan
    measured: Measured
    found: tuple[Found, ...]
    command: str

    def published(self, arm: Arm, quantity: str) -> Published | None:
        """The study's number of a policy in a condition."""
        for each in self.plan.config.published:
            if (each.condition, each.policy, each.quantity) == (arm.condition, arm.policy, quantity):
                return each
        return None

    def shown(self, figure: FigureConfig) -> Iterator[Shown]:
        """The numbers of a figure, quantity by quantity and place by place."""
        for quantity in figure.quantities:
            for place in range(len(figure.places)):
                for series in figure.series:
                    arm = figure.arms_of(series)[place]
                    if arm is not None:
                        yield Shown(series, place, arm, quantity)

    def found_in(self, figure: FigureConfig) -> tuple[Found, ...]:
        """The findings that a figure shows."""
        return tuple(found for found in self.found if found.finding.figure == figure.name)

    def residuals(self) -> tuple[Residual, ...]:
        """Every goodput of the study whose policy ran in its condition."""
        return tuple(
            Residual(each, self.measured.estimate(Arm(policy=each.policy, condition=each.condition)).mean)
            for each in self.plan.config.published
            if each.quantity == "goodput" and (each.condition, each.policy) in self.measured.summaries
        )

    def winners(self) -> tuple[Winner, ...]:
        """Conditions of which the study has several policies."""
        by_condition: dict[str, list[Residual]] = {}
        for each in self.residuals():
            by_condition.setdefault(each.published.condition, []).append(each)
        found = []
        for condition, some in by_condition.items():
            if len(some) < 2:
                continue
            theirs = max(some, key=lambda each: float(np.mean(each.published.ends)))
            ours = max(some, key=lambda each: each.ours)
            found.append(
                Winner(
                    condition,
                    (theirs.published.policy, float(np.mean(theirs.published.ends))),
                    (ours.published.policy, ours.ours),
                    tuple(each.published.policy for each in some),
                )
            )
        return tuple(found)

    def styles(self, figure: FigureConfig) -> dict[str, Style]:
        """How each series of a figure looks, by label."""
        # A series with a name of its own is one more variant of its policy.
        texts = [s.policy if s.label == s.policy else f"{s.policy.split('(')[0]}({s.label})" for s in figure.series]
        styles = policy_styles(texts)
        return {series.label: styles[text] for series, text in zip(figure.series, texts, strict=True)}
