"""The board as tables, and as rows of the two CSV files."""

from __future__ import annotations

from typing import Any

from ..report.tables import Table
from ..scenario_check import rounded
from ..statistics import Estimate
from ..table import number, points
from .best_known import LEAST_GAP
from .board import Board, Overall, Standing
from .guards import MOST_LOSS, MOST_TAIL

FLAG = "✗"
"""Stands at a score that a guard disqualifies."""

SOME = 3
"""Scenarios that are named in a cell; the table of the guards has them all."""

GUARDS = (
    f"Guards: no SLO class or family may lose more than {100 * MOST_LOSS:g} points against {{reference}}, P99.9 of "
    f"TTFT and of slowdown may be {MOST_TAIL:g} times those of the best tuned heuristic, and nothing may be rejected "
    "that {zero} does not reject. A guard is broken where the mean over the seeds is beyond its limit with its whole "
    "95 % interval."
)


def leaderboard_table(board: Board) -> Table:
    """Policies over all scenarios."""
    marked = f" ({board.mark})" if board.mark else ""
    rows = []
    for place, each in enumerate(board.overalls, 1):
        ran = f"{len(board.results) - len(each.lacking)} of {len(board.results)}"
        cells = (
            str(place) if each.ranked else "–",
            f"{each.score.mean:.3f}",
            two_ends(each.score),
            f"{each.mean:.3f}",
            f"{each.worst[1]:+.2f} {each.worst[0]}",
            f"{ran}, fewer seeds" if each.fewer else ran,
            verdict(each),
        )
        rows.append((each.label, cells))
    nobody = "" if any(each.ranked for each in board.overalls) else " Here none has one."
    return Table(
        name="leaderboard",
        title=f"Leaderboard{marked}",
        note=f"Score: interquartile mean over the seeds of all scenarios; 0 is {board.plan.roster.zero}, 1 the best "
        f"policy known in each scenario. {guards_in_words(board)} Policies that break one, or that did not run "
        f"everywhere and on all seeds, have no place.{nobody}",
        columns=("place", "score", "95 %", "mean", "worst scenario", "scenarios", "guards"),
        rows=tuple(rows),
        best=0 if board.overalls and board.overalls[0].ranked else None,
    )


def score_table(board: Board) -> Table:
    """The score of each policy in each scenario."""
    zero = board.plan.roster.zero
    rows = tuple(
        (each.label, tuple(_score(result.standings.get(each.label)) for result in board.results))
        for each in board.overalls
    )
    return Table(
        name="scores",
        title="Scores by scenario",
        note=f"(goodput − {zero}'s) / max(best known − {zero}'s, {LEAST_GAP:g}), mean over the seeds. {FLAG}: a guard "
        "disqualifies it.",
        columns=tuple(result.name for result in board.results),
        rows=rows,
    )


def point_table(board: Board) -> Table:
    """Points that each policy gains on the one of score 0, with intervals."""
    zero = board.plan.roster.zero
    rows = []
    for each in board.overalls:
        standings = (result.standings.get(each.label) for result in board.results)
        cells = tuple("–" if s is None or each.label == zero else points(s.difference) for s in standings)
        rows.append((each.label, cells))
    return Table(
        name="points",
        title=f"Points to {zero}",
        note="Points: hundredths of goodput, on the same traces, with 95 % intervals.",
        columns=tuple(result.name for result in board.results),
        rows=tuple(rows),
    )


def scale_table(board: Board) -> Table:
    """What 0 and 1 stand for in each scenario, and what lies above."""
    rows = []
    for result in board.results:
        best = result.best
        cells = (
            number(result.zero, 3),
            f"{best.round_robin:.3f}" if result.stored else "–",
            f"{best.goodput:.3f}" + ("" if result.stored else " (this run)"),
            best.policy,
            f"{100 * best.gap:.1f}",
            number(result.hindsight, 3),
            number(result.ceiling, 3),
            result.heuristic,
        )
        rows.append((result.name, cells))
    zero = board.plan.roster.zero
    return Table(
        name="scale",
        title="What a score stands for",
        note="Hindsight: the best of all policies of this run on each trace, mean over the traces, which is no more "
        "than the best routing could reach. Ceiling: the share that meets both targets alone on the empty cluster. "
        "Tails are held to those of the heuristic.",
        columns=(
            *(zero, f"{zero} when fixed", "best known", "policy", "points of a score of 1"),
            *("hindsight", "ceiling", "best tuned heuristic"),
        ),
        rows=tuple(rows),
        first="scenario",
    )


def guard_table(board: Board) -> Table:
    """What disqualifies, policy by policy."""
    rows = []
    for each in board.overalls:
        found = "; ".join(f"{name}: {', '.join(breaches)}" for name, breaches in each.breaches.items())
        rows.append((each.label, (found or "none",)))
    return Table(
        name="guards",
        title="Guards",
        note=f"{guards_in_words(board)} Points of a class or family; × over the heuristic's.",
        columns=("broken",),
        rows=tuple(rows),
    )


def beside_table(board: Board) -> Table | None:
    """Requests in time per second and GPU, of scenarios with the same traffic on the same GPUs; None without any."""
    known = {result.name: result for result in board.results}
    pairs = [(r, known[r.leg.scenario.beside]) for r in board.results if r.leg.scenario.beside in known]
    if not pairs:
        return None
    rows = []
    for each in board.overalls:
        cells = [_per_gpu(result.standings.get(each.label)) for pair in pairs for result in pair]
        rows.append((each.label, tuple(cells)))
    return Table(
        name="beside",
        title="The same traffic on the same GPUs",
        note="Requests that met their targets, per second and GPU, each deployment at its own saturation rate.",
        columns=tuple(result.name for pair in pairs for result in pair),
        rows=tuple(rows),
    )


def scenario_table(board: Board) -> Table:
    """What each scenario is."""
    rows = []
    for result in board.results:
        scenario, setting = result.leg.scenario, result.row.evaluation.setting
        rate = setting.scenario.rate or setting.traffic.own_rate
        seeds = result.leg.seeds
        cells = (
            str(scenario.version),
            setting.traffic.name,
            setting.cluster.name,
            f"{rate:.4g}" if rate is not None else "–",
            "one trace" if result.leg.recorded else f"{seeds[0]}–{seeds[-1]}",
            f"{setting.duration_s:.0f}",
            f"{result.row.requests:,}",
            scenario.notes,
        )
        rows.append((result.name, cells))
    columns = ("version", "workload", "cluster", "requests/s", "seeds", "window s", "requests", "what it asks")
    return Table("scenarios", "Scenarios", "", columns, tuple(rows), first="scenario")


def leaderboard_rows(board: Board) -> list[dict[str, Any]]:
    """One row per policy."""
    rows = []
    for place, each in enumerate(board.overalls, 1):
        rows.append(
            {
                "place": place if each.ranked else "",
                "policy": each.label,
                **_ends("score", each.score),
                "mean_score": rounded(each.mean),
                "worst_scenario": each.worst[0],
                "worst_score": rounded(each.worst[1]),
                "scenarios": len(board.results) - len(each.lacking),
                "of": len(board.results),
                "fewer_seeds": bool(each.fewer),
                "qualified": each.qualified,
                "broken": "; ".join(f"{name}: {', '.join(some)}" for name, some in each.breaches.items()),
                "mark": board.mark,
            }
        )
    return rows


def suite_rows(board: Board) -> list[dict[str, Any]]:
    """One row per scenario and policy; goodput and differences as fractions of the requests, times in seconds."""
    rows = []
    for result in board.results:
        scenario, setting = result.leg.scenario, result.row.evaluation.setting
        told = {
            "scenario": result.name,
            "version": scenario.version,
            "workload": setting.traffic.name,
            "cluster": setting.cluster.name,
            "rate": setting.scenario.rate or setting.traffic.own_rate,
            "first_seed": result.leg.seeds[0],
            "duration_s": rounded(setting.duration_s),
            "ceiling": rounded(result.ceiling),
            "hindsight": rounded(result.hindsight),
            "zero": rounded(result.zero),
            "best_policy": result.best.policy,
            "best_known": rounded(result.best.goodput),
            "best_gap": rounded(result.best.gap),
            "heuristic": result.heuristic,
        }
        rows += [told | _numbers(standing) for standing in result.standings.values()]
    return rows


def guards_in_words(board: Board) -> str:
    """The rule of the guards."""
    roster = board.plan.roster
    return GUARDS.format(reference=roster.reference, zero=roster.zero)


def verdict(each: Overall) -> str:
    """What the guards found, in short."""
    if each.qualified:
        return "kept"
    named = ", ".join(list(each.breaches)[:SOME])
    more = len(each.breaches) - SOME
    return f"{FLAG} {named}" + (f" and {more} more" if more > 0 else "")


def two_ends(estimate: Estimate) -> str:
    """Both ends of an interval, or a dash."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:.3f} … {estimate.high:.3f}"


def _score(standing: Standing | None) -> str:
    if standing is None:
        return "–"
    return f"{standing.score.mean:+.2f}" + (f" {FLAG}" if standing.guards.breaches else "")


def _per_gpu(standing: Standing | None) -> str:
    return "–" if standing is None else number(standing.per_gpu, 3)


def _ends(name: str, estimate: Estimate) -> dict[str, Any]:
    ends = {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {key: rounded(value) for key, value in ends.items()}


def _numbers(standing: Standing) -> dict[str, Any]:
    guards = standing.guards
    return {
        "policy": standing.label,
        "text": standing.text,
        "policy_hash": standing.hash,
        "seeds": standing.seeds,
        **_ends("goodput", standing.goodput),
        **_ends("difference", standing.difference),
        **_ends("score", standing.score),
        "worst_group": guards.worst.group if guards.worst else "",
        "worst_difference": rounded(guards.worst.difference if guards.worst else None),
        "ttft_p999_s": rounded(guards.ttft_p999),
        "ttft_p999_ratio": rounded(guards.ttft_ratio),
        "slowdown_p999": rounded(guards.slowdown_p999),
        "slowdown_p999_ratio": rounded(guards.slowdown_ratio),
        "failed": guards.failed,
        "rejected": guards.rejected,
        "goodput_per_gpu_per_s": rounded(standing.per_gpu),
        "broken": ", ".join(guards.breaches),
    }


