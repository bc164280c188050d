"""An experiment as tables: verdicts, comparisons, and the study's numbers beside ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..report.tables import Table
from ..scenario_check import rounded
from ..statistics import Estimate
from ..table import number
from .config import FigureConfig, Published
from .experiment import Experiment
from .findings import Compared, Found
from .quantities import QUANTITIES
from .verdicts import NOT_REPRODUCED, REPRODUCED, UNDECIDED

RULE = (
    "Reproduced: each effect is what the rule says and the p-value of its sign-flip test is below α after Holm's "
    "adjustment over the findings (of several comparisons the largest counts). Not reproduced: the 95 % interval of an "
    "effect lies outside what the rule says. Undecided: neither."
)


def verdict_table(experiment: Experiment) -> Table:
    """Every finding with its weakest comparison and its verdict."""
    rows = []
    for found in experiment.found:
        weakest = found.weakest
        cells = (
            found.finding.study,
            effect_text(weakest),
            weakest.effect.rule.text(weakest.unit),
            p_text(found.p),
            found.verdict,
        )
        rows.append((found.finding.claim, cells))
    return Table(
        name="verdicts",
        title="Verdicts",
        note=f"Of several comparisons the one that bears the claim least is shown. {RULE} α = "
        f"{experiment.plan.config.level:g}.",
        columns=("study", "here (95 % interval)", "rule", "p, adjusted", "verdict"),
        rows=tuple(rows),
        first="finding",
    )


def comparison_table(experiment: Experiment, figure: FigureConfig) -> Table:
    """Every comparison of the findings that a figure shows."""
    rows = []
    for found in experiment.found_in(figure):
        for each in found.compared:
            cells = (
                found.finding.name,
                effect_text(each),
                each.effect.rule.text(each.unit),
                "yes" if each.effect.holds else "no",
                p_text(each.effect.p),
                found.verdict,
            )
            rows.append((each.text, cells))
    return Table(
        name=f"comparisons-{figure.name}",
        title="Comparisons",
        note="Differences are taken trace by trace. A p-value is of the comparison alone, a verdict of the finding.",
        columns=("finding", "effect (95 % interval)", "rule", "as claimed", "p", "verdict"),
        rows=tuple(rows),
        first="comparison",
    )


def number_table(experiment: Experiment, figure: FigureConfig) -> Table:
    """What a figure shows, with the study's numbers."""
    rows: dict[tuple[int, str], list[str]] = {}
    for shown in experiment.shown(figure):
        kind = QUANTITIES[shown.quantity]
        estimate = experiment.measured.estimate(shown.arm, shown.quantity)
        published = experiment.published(shown.arm, shown.quantity)
        cells = [value_text(estimate, kind.digits), _published_text(published, kind.digits)]
        rows.setdefault((shown.place, shown.series.label), []).extend(cells)
    titles = [QUANTITIES[name].title for name in figure.quantities]
    columns = [word for title in titles for word in (f"{title}, here", "study")]
    known = [k for k, name in enumerate(columns) if name != "study" or any(cells[k] != "–" for cells in rows.values())]
    several = len(figure.places) > 1
    return Table(
        name=f"numbers-{figure.name}",
        title="Numbers",
        note="Means over the traces; in brackets 95 % intervals.",
        columns=tuple(columns[k] for k in known),
        rows=tuple(
            (f"{label}, {_place(figure, place)}" if several else label, tuple(cells[k] for k in known))
            for (place, label), cells in rows.items()
        ),
    )


def residual_table(experiment: Experiment) -> Table:
    """The study's goodputs and ours, where both have one."""
    residuals = experiment.residuals()
    rows = tuple(
        (
            each.published.policy,
            (
                each.published.condition,
                _published_text(each.published, 3),
                f"{each.ours:.3f}",
                f"{100 * each.difference:+.1f}",
            ),
        )
        for each in residuals
    )
    theirs = experiment.plan.config.published_residual
    middle = float(np.median([abs(each.difference) for each in residuals]))
    note = f"Mean absolute residual {residual_of(experiment):.3f}, median {middle:.3f}"
    if theirs is not None:
        note += f"; the mean of the study's own simulator, refitted to what it had measured, is {theirs:.3f}"
    return Table("residuals", "Goodput, measured by the study and simulated here", f"{note}.", _RESIDUALS, rows)


_RESIDUALS = ("condition", "study", "here", "points")


def residual_of(experiment: Experiment) -> float:
    """Mean absolute residual of goodput; NaN where the study has no number."""
    distances = [abs(each.difference) for each in experiment.residuals()]
    return float(np.mean(distances)) if distances else float("nan")


def winner_table(experiment: Experiment) -> Table:
    """Who is best, in the study and here."""
    rows = tuple(
        (
            each.condition,
            (
                f"{each.study[0]} {each.study[1]:.3f}",
                f"{each.ours[0]} {each.ours[1]:.3f}",
                "yes" if each.same else "no",
                ", ".join(each.of),
            ),
        )
        for each in experiment.winners()
    )
    note = "Of the policies of which the study has a number. Its own simulator reproduced the winner on no workload."
    return Table("winners", "Who is best", note, ("study", "here", "same", "of"), rows, first="condition")


def command_table(experiment: Experiment) -> Table:
    """The command behind each condition."""
    commands, without = experiment.measured.commands, f"only as part of {experiment.command}"
    rows = tuple(
        (part.name, (f"{part.scenario.rate:.6g}", commands[part.name] or without)) for part in experiment.measured.parts
    )
    note = "Each makes the runs of a condition again, as an evaluation of its own."
    return Table("commands", "Commands", note, ("requests/s", "command"), rows, first="condition")


def count_words(experiment: Experiment) -> str:
    """How many findings have which verdict."""
    verdicts = [found.verdict for found in experiment.found]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in (REPRODUCED, NOT_REPRODUCED, UNDECIDED))
    return f"{len(verdicts)} findings: {counts}"


def finding_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per comparison; effects in the unit beside them."""
    return [
        {
            "finding": found.finding.name,
            "claim": found.finding.claim,
            "study": found.finding.study,
            "comparison": each.text,
            "seeds": found.seeds,
            "unit": each.unit,
            "effect": rounded(each.effect.estimate.mean),
            "effect_low": rounded(each.effect.estimate.low),
            "effect_high": rounded(each.effect.estimate.high),
            "rule": each.effect.rule.kind,
            "margin": each.effect.rule.margin,
            "holds": each.effect.holds,
            "p": rounded(each.effect.p),
            "p_adjusted": rounded(found.p),
            "verdict": found.verdict,
        }
        for found in experiment.found
        for each in found.compared
    ]


def number_rows(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per condition, policy and quantity that a figure shows."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for figure in experiment.plan.figures:
        for shown in experiment.shown(figure):
            estimate = experiment.measured.estimate(shown.arm, shown.quantity)
            published = experiment.published(shown.arm, shown.quantity)
            low, high = (None, None) if published is None else published.ends
            part = experiment.plan.part(shown.arm.condition)
            key = (shown.arm.condition, shown.arm.policy, shown.quantity)
            rate = next(each.scenario.rate for each in experiment.measured.parts if each.name == part.name)
            rows[key] = {
                "condition": shown.arm.condition,
                "policy": shown.arm.policy,
                "quantity": shown.quantity,
                "rate": rate,
                "seeds": len(estimate.values),
                "mean": rounded(estimate.mean),
                "low": rounded(estimate.low),
                "high": rounded(estimate.high),
                "study_low": low,
                "study_high": high,
            }
    return list(rows.values())


def effect_text(compared: Compared) -> str:
    """An effect with its interval and unit."""
    estimate = compared.effect.estimate
    signed = compared.comparison.against is not None
    digits = 1 if compared.unit != "points" or abs(estimate.mean) >= 0.95 else 2

    def text(value: float) -> str:
        return f"{value:+.{digits}f}" if signed and np.isfinite(value) else number(value, digits)

    words = f"{text(estimate.mean)} {compared.unit}"
    if estimate.low is not None and estimate.high is not None:
        words += f" ({text(estimate.low)} … {text(estimate.high)})"
    return words


def value_text(estimate: Estimate, digits: int) -> str:
    """A value with its interval."""
    text = number(estimate.mean, digits)
    if estimate.low is not None and estimate.high is not None:
        text += f" ({estimate.low:.{digits}f}–{estimate.high:.{digits}f})"
    return text


def p_text(p: float) -> str:
    """A p-value in as many digits as matter."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _published_text(published: Published | None, digits: int) -> str:
    if published is None:
        return "–"
    low, high = published.ends
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f}–{high:.{digits}f}"


def _place(figure: FigureConfig, place: int) -> str:
    word = figure.places[place]
    return f"{word:g}" if isinstance(word, float) else str(word)


def verdict_marks(found: Found) -> str:
    """A verdict in words, as it stands over a figure."""
    return f"{found.finding.claim}: {found.verdict}"
