"""The plan of a run of the suite: which policies in which scenarios on which seeds, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...envs import catalog
from ...envs.setting import Setting
from ..matrix.config import Condition, Contender, MatrixConfig
from ..matrix.plan import Part, Plan, check_data, plan_of, with_trace
from ..runs import fingerprint
from ..source_hash import source_hash
from . import config
from .best_known import Best, BestKnown
from .config import SuiteScenario
from .roster import Entry, Roster

NAME = "suite"


@dataclass(frozen=True)
class Entrant:
    """A policy in one scenario.

    Attributes:
        label: its name in tables.
        text: the policy.
        part: the part of the matrix that runs it.
        heuristic: whether it is a tuned heuristic.
        asked: whether it was asked for, or runs only for others to be held to.
    """

    label: str
    text: str
    part: int
    heuristic: bool
    asked: bool


@dataclass(frozen=True)
class Leg:
    """One scenario of the plan.

    Attributes:
        scenario: as written.
        best: what is best known of it at this version; None where nobody has measured it.
        entrants: its policies.
        seeds: of the policies that run on all.
        recorded: whether it is one recorded trace.
    """

    scenario: SuiteScenario
    best: Best | None
    entrants: tuple[Entrant, ...]
    seeds: range
    recorded: bool


@dataclass(frozen=True)
class Wish:
    """How the scenarios are to be run.

    Attributes:
        seeds: at most so many of each scenario; None: all of its own.
        duration_s: window of each scenario that is no recorded trace; None: its own.
        claim: whether held-out seeds are used, for a claim, in place of the validation seeds.
        data: folder of trace files; None: `$DISAGGROUTE_DATA`.
    """

    seeds: int | None = None
    duration_s: float | None = None
    claim: bool = False
    data: Path | None = None

    def count(self, scenario: SuiteScenario) -> int:
        """How many seeds of a scenario."""
        count = self.span(scenario).count
        return count if self.seeds is None else min(self.seeds, count)

    def span(self, scenario: SuiteScenario) -> config.Span:
        """The seeds that a scenario has for this."""
        return scenario.seeds.held_out if self.claim else scenario.seeds.validation

    def usual(self, scenarios: Sequence[SuiteScenario]) -> bool:
        """Whether seeds and windows are the scenarios' own."""
        own = (scenario.recorded or self.count(scenario) == self.span(scenario).count for scenario in scenarios)
        return self.duration_s is None and all(own)


@dataclass(frozen=True)
class SuitePlan:
    """A run of the suite that can start.

    Attributes:
        roster: of the suite.
        scenarios: those that were chosen, run or not.
        legs: those that run.
        matrix: what runs, as a matrix: one part per scenario, and one more where some policies have fewer seeds.
        labels: policies that were asked for, in order.
        missing: a sentence for each scenario whose trace is not there, by name.
        known: what is best known, of all scenarios.
        wish: how they run.
    """

    roster: Roster
    scenarios: tuple[SuiteScenario, ...]
    legs: tuple[Leg, ...]
    matrix: Plan
    labels: tuple[str, ...]
    missing: dict[str, str]
    known: BestKnown
    wish: Wish

    @property
    def usual(self) -> bool:
        """Whether seeds and windows are the scenarios' own."""
        return self.wish.usual(self.scenarios)

    @property
    def folder(self) -> Path:
        """`results/suite-<key>`: other scenarios, windows or code get another folder."""
        contents = {name: config.load(name).content for name in config.names()}
        contents |= {scenario.name: scenario.content for scenario in self.scenarios}
        known = {"scenarios": contents, "duration_s": self.wish.duration_s}
        key = fingerprint(known | {"code": source_hash(), "version": __version__})
        return Path("results") / f"{NAME}-{key[:6]}"


def plan_suite(
    roster: Roster,
    scenarios: Sequence[SuiteScenario],
    known: BestKnown,
    *,
    policies: Sequence[str] = (),
    wish: Wish = Wish(),
) -> SuitePlan:
    """Looks up everything that a run of the suite needs.

    Args:
        roster: policies, the one of score 0 and the one that others are held to.
        scenarios: to be run.
        known: what is best known of them.
        policies: names of the roster or texts of policies; none: all of the roster.
        wish: how the scenarios are to be run.

    Raises:
        ValueError: a name that stands for nothing, seeds that may not be used, a policy that does not fit a cluster, a
            scenario that changed without a new version, or none that can be run; names the scenario.
    """
    check_data(wish.data)
    if wish.seeds is not None and wish.seeds < 1:
        raise ValueError(f"seeds is {wish.seeds}; it must be at least 1")
    asked = roster.chosen(policies) if policies else roster.policies
    missing: dict[str, str] = {}
    legs: list[Leg] = []
    parts: list[Part] = []
    for scenario in scenarios:
        found, absent = with_trace(scenario.scenario, wish.data)
        if absent:
            missing[scenario.name] = f"scenario {scenario.name} is skipped: {absent}"
            continue
        try:
            instances = len(Setting.of(found).cluster.instances)
        except ValueError as error:
            raise ValueError(f"scenario {scenario.name}: {error}") from error
        best = known.of(scenario.name, scenario.version, scenario.content)
        fitting = [entry for entry in asked if entry.runs_in(scenario.name, instances)]
        leg, more = _leg(roster, scenario, best, fitting, wish, len(parts))
        legs.append(leg)
        parts += more
    if not legs:
        raise ValueError(f"no scenario of the suite can be run; {'; '.join(missing.values())}")
    head = _matrix(roster, legs[0].scenario, [entry.in_scenario(legs[0].scenario) for entry in roster.policies])
    matrix = Plan(head, tuple(parts), roster.reference, tuple(missing.values()), wish.duration_s)
    labels = tuple(entry.label for entry in asked)
    return SuitePlan(roster, tuple(scenarios), tuple(legs), matrix, labels, missing, known, wish)


def _leg(
    roster: Roster, scenario: SuiteScenario, best: Best | None, asked: Sequence[Entry], wish: Wish, place: int
) -> tuple[Leg, list[Part]]:
    """One scenario: the policies that were asked for, and those that others are held to.

    Args:
        roster: of the suite.
        scenario: to be run.
        best: known of it.
        asked: policies.
        wish: how it is to be run.
        place: number of its first part in the matrix.
    """
    entries = {entry.label: entry for entry in asked}
    names = set(entries)
    for label in (roster.zero, roster.reference):
        entries.setdefault(label, roster.entry(label))
    heuristics = {entry.label for entry in roster.policies if entry.heuristic}
    contenders = {label: entry.in_scenario(scenario) for label, entry in entries.items()}
    if best is not None and best.heuristic is not None:
        label, text = best.heuristic
        contenders.setdefault(label, Contender(policy=text, name=label))
        heuristics.add(label)
    count = wish.count(scenario)
    groups: dict[int, list[str]] = {count: []}
    for label in contenders:
        most = entries[label].seeds if label in entries else None
        # A recorded trace runs once whoever routes it; a claim rests on all seeds or on none.
        if most is None or most >= count or scenario.recorded:
            groups[count].append(label)
        elif not wish.claim:
            groups.setdefault(most, []).append(label)
    parts: list[Part] = []
    entrants: list[Entrant] = []
    condition = catalog.validate(Condition, scenario.condition, scenario.name)
    for number, (seeds, labels) in enumerate(groups.items()):
        # On fewer seeds the reference has run already, and costs nothing.
        of_part = list(dict.fromkeys([roster.reference, *labels]))
        plan = plan_of(
            _matrix(roster, scenario, [contenders[label] for label in of_part]),
            [condition],
            seeds=seeds,
            first_seed=wish.span(scenario).first,
            duration_s=wish.duration_s,
            claim=wish.claim,
            data=wish.data,
        )
        parts += plan.parts
        entrants += [
            Entrant(label, plan.parts[0].policies[label], place + number, label in heuristics, label in names)
            for label in labels
        ]
    return Leg(scenario, best, tuple(entrants), parts[0].seeds, scenario.recorded), parts


def _matrix(roster: Roster, scenario: SuiteScenario, contenders: Sequence[Contender]) -> MatrixConfig:
    conditions: tuple[dict[str, Any], ...] = (scenario.condition,)
    return MatrixConfig(
        name=NAME, policies=tuple(contenders), reference=roster.reference, conditions=conditions, notes=roster.notes
    )
