"""The board: scores and guards of every policy in every scenario, and over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..comparison import mean_over_runs
from ..matrix.cells import Matrix, Row
from ..statistics import BLOCK_S, Estimate, mean_over_seeds, paired_difference, share_in_blocks
from ..summary import SEGMENT_S, Summary
from .best_known import Best
from .guards import Guards, guard
from .plan import Entrant, Leg, SuitePlan
from .scores import Stratum, overall, stratum


@dataclass(frozen=True)
class Standing:
    """A policy in a scenario.

    Attributes:
        label: its name.
        text: the policy there.
        hash: of the policy.
        seeds: traces that it ran on.
        goodput: with interval.
        difference: to the policy of score 0 on the same traces.
        score: (goodput − that of score 0) / max(best known − that of score 0, 0.02), with the interval of the
            difference.
        guards: what it is held to.
        per_gpu: requests that met their targets, per second and GPU.
        stratum: its scores, trace by trace.
    """

    label: str
    text: str
    hash: str
    seeds: int
    goodput: Estimate
    difference: Estimate
    score: Estimate
    guards: Guards
    per_gpu: float
    stratum: Stratum


@dataclass(frozen=True)
class Result:
    """A scenario that has run.

    Attributes:
        leg: what was run.
        row: of the matrix.
        ceiling: mean share of requests that meet their targets alone.
        hindsight: mean over the traces of the best goodput that any policy of this run has there.
        zero: goodput of the policy of score 0.
        best: best known; where nobody has measured it, the best of this run.
        stored: whether `best` comes from the file.
        heuristic: name of the tuned heuristic that tails are held to.
        standings: by the name of the policy.
    """

    leg: Leg
    row: Row
    ceiling: float
    hindsight: float
    zero: float
    best: Best
    stored: bool
    heuristic: str
    standings: dict[str, Standing]

    @property
    def name(self) -> str:
        """Of the scenario."""
        return self.leg.scenario.name


@dataclass(frozen=True)
class Overall:
    """A policy over all scenarios.

    Attributes:
        label: its name.
        score: interquartile mean over all runs, with interval; its values are the scenarios' scores.
        mean: of the scenarios' scores.
        worst: scenario of the lowest score, and that score.
        lacking: chosen scenarios in which it did not run.
        fewer: scenarios in which it ran on fewer seeds than others.
        breaches: by scenario, what disqualifies.
    """

    label: str
    score: Estimate
    mean: float
    worst: tuple[str, float]
    lacking: tuple[str, ...]
    fewer: tuple[str, ...]
    breaches: dict[str, tuple[str, ...]]

    @property
    def qualified(self) -> bool:
        """Whether no guard of any scenario disqualifies it."""
        return not self.breaches

    @property
    def whole(self) -> bool:
        """Whether it ran in all scenarios, on all seeds."""
        return not self.lacking and not self.fewer

    @property
    def ranked(self) -> bool:
        """Whether it has a place."""
        return self.qualified and self.whole


@dataclass(frozen=True)
class Board:
    """A run of the suite, with its scores.

    Attributes:
        plan: what was run.
        results: the scenarios that ran.
        overalls: policies that were asked for: those that qualify first, then those that do not, and last those that
            did not run everywhere, or on fewer seeds; each by score.
        command: the command line that makes it again.
    """

    plan: SuitePlan
    results: tuple[Result, ...]
    overalls: tuple[Overall, ...]
    command: str

    def strata(self, label: str) -> list[Stratum]:
        """Scores of a policy, scenario by scenario."""
        return [result.standings[label].stratum for result in self.results if label in result.standings]

    @property
    def mark(self) -> str:
        """What must stand beside every score over all; empty for a whole suite as it is meant."""
        marks = [f"without {name}" for name in self.plan.missing]
        shipped = [name for name in self.plan.roster.scenarios if name not in {s.name for s in self.plan.scenarios}]
        if shipped:
            marks.append("not all scenarios of the suite")
        if not self.plan.usual:
            marks.append("other seeds or windows than the suite's")
        if not all(result.stored for result in self.results):
            marks.append("best known of this run")
        return ", ".join(marks)


def board_of(plan: SuitePlan, matrix: Matrix) -> Board:
    """Scores of what has run."""
    results = tuple(_result(plan, leg, matrix.rows) for leg in plan.legs)
    found = []
    for label in plan.labels:
        standings = {r.name: r.standings[label] for r in results if label in r.standings}
        if standings:
            found.append(_overall(label, standings, results))
    found.sort(key=lambda each: (not each.whole, not each.qualified, -each.score.mean))
    return Board(plan, results, tuple(found), matrix.command)


def best_of(result: Result, command: str) -> Best:
    """The best policy of a run in a scenario, of those that ran on all its seeds: a candidate for the file."""
    scenario = result.leg.scenario
    whole = [s for s in result.standings.values() if s.seeds == len(result.leg.seeds)]
    top = max(whole, key=lambda standing: standing.goodput.mean)
    text = result.standings[result.heuristic].text
    return Best(
        version=scenario.version,
        content=scenario.content,
        policy=top.text,
        goodput=round(top.goodput.mean, 6),
        round_robin=round(result.zero, 6),
        heuristic=(result.heuristic, text),
        command=command,
    )


def _result(plan: SuitePlan, leg: Leg, rows: Sequence[Row]) -> Result:
    runs = {each.label: [run.summary for run in rows[each.part].evaluation.runs[each.text]] for each in leg.entrants}
    zero, reference = runs[plan.roster.zero], plan.roster.reference
    whole = {label: some for label, some in runs.items() if len(some) == len(leg.seeds)}
    goodput = {label: _mean_goodput(some) for label, some in whole.items()}
    heuristic = _heuristic(leg, goodput)
    top = max(goodput, key=lambda label: goodput[label])
    texts = {each.label: each.text for each in leg.entrants}
    best = leg.best or Best(
        version=leg.scenario.version,
        content=leg.scenario.content,
        policy=texts[top],
        goodput=goodput[top],
        round_robin=goodput[plan.roster.zero],
        heuristic=(heuristic, texts[heuristic]),
        command="",
    )
    row = rows[leg.entrants[0].part]
    standings = {}
    for entrant in leg.entrants:
        mine = runs[entrant.label]
        n = len(mine)
        guards = guard(
            mine,
            reference=None if entrant.label == reference else runs[reference][:n],
            heuristic=runs[heuristic][:n],
            zero=zero[:n],
        )
        standings[entrant.label] = _standing(entrant, rows, mine, zero[:n], best.gap, guards, leg.recorded)
    return Result(
        leg=leg,
        row=row,
        ceiling=row.ceiling,
        hindsight=math.fsum(max(some[k].goodput for some in whole.values()) for k in range(len(zero))) / len(zero),
        zero=goodput[plan.roster.zero],
        best=best,
        stored=leg.best is not None,
        heuristic=heuristic,
        standings=standings,
    )


def _standing(
    entrant: Entrant,
    rows: Sequence[Row],
    mine: list[Summary],
    zero: list[Summary],
    gap: float,
    guards: Guards,
    recorded: bool,
) -> Standing:
    values, others = [s.goodput for s in mine], [s.goodput for s in zero]
    if recorded:
        difference = share_in_blocks(
            mine[0].segment_met,
            mine[0].segment_requests,
            baseline=zero[0].segment_met,
            block=round(BLOCK_S / SEGMENT_S),
        )
        goodput = rows[entrant.part].cells[entrant.label].goodput
    else:
        difference, goodput = paired_difference(values, others), mean_over_seeds(values)
    return Standing(
        label=entrant.label,
        text=entrant.text,
        hash=str(rows[entrant.part].evaluation.runs[entrant.text][0].policy["hash"]),
        seeds=len(mine),
        goodput=goodput,
        difference=difference,
        score=scaled(difference, 1 / gap),
        guards=guards,
        per_gpu=mean_over_runs(mine, lambda s: s.goodput_per_gpu),
        stratum=stratum(mine, zero, gap, recorded=recorded),
    )


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """An estimate in other units."""
    low, high = (None if end is None else end * factor for end in (estimate.low, estimate.high))
    return Estimate(estimate.mean * factor, low, high, tuple(value * factor for value in estimate.values))


def _heuristic(leg: Leg, goodput: Mapping[str, float]) -> str:
    """The tuned heuristic that tails are held to: the best known one, else the best of this run."""
    if leg.best is not None and leg.best.heuristic is not None:
        return leg.best.heuristic[0]
    return max((each.label for each in leg.entrants if each.heuristic), key=lambda label: goodput[label])


def _overall(label: str, standings: Mapping[str, Standing], results: Sequence[Result]) -> Overall:
    scores = {name: standing.score.mean for name, standing in standings.items()}
    worst = min(scores, key=lambda name: scores[name])
    return Overall(
        label=label,
        score=overall([standing.stratum for standing in standings.values()]),
        mean=math.fsum(scores.values()) / len(scores),
        worst=(worst, scores[worst]),
        lacking=tuple(r.name for r in results if r.name not in standings),
        fewer=tuple(r.name for r in results if r.name in standings and standings[r.name].seeds < len(r.leg.seeds)),
        breaches={name: s.guards.breaches for name, s in standings.items() if s.guards.breaches},
    )


def _mean_goodput(summaries: Sequence[Summary]) -> float:
    return math.fsum(s.goodput for s in summaries) / len(summaries)
