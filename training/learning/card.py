"""The model card of a trained policy: how it was made, how good it is, and where it fails (Markdown).

It holds no time of day and no speed: the same training gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ... import __version__
from ...envs.setting import Setting
from .choose import Choice, Entrant, Tested
from .config import TrainingConfig

LOST_POINTS = 5.0
"""Points that a class or family may lose against the baseline before the card says so."""

TAIL = 1.5
"""Ratio of P99.9 to the baseline's, beyond which the card says so."""


def card(choice: Choice) -> str:
    """The text of `card.md`."""
    return "\n".join(_lines(choice)) + "\n"


def _lines(choice: Choice) -> Iterator[str]:
    config, validation = choice.config, choice.config.validation
    yield f"# {config.name}"
    yield ""
    yield f"A `{config.policy.name}` policy, trained by `{config.method}` with disaggroute {__version__}."
    yield ""
    if choice.command:
        yield "```sh"
        yield choice.command
        yield "```"
        yield ""
    yield from _facts(choice)
    yield ""
    yield "## Validation"
    yield ""
    first, last = validation.traces[0], validation.traces[-1]
    yield (
        f"Goodput on seeds {first} to {last}, {validation.duration_s:g} s each; in brackets points to the baseline, "
        "paired by trace, with 95 % interval. The choice was made on these traces, which flatters it a little."
    )
    yield ""
    rows = [("policy", *(each.name for each in choice.tested))]
    rows.append(("baseline", *(f"`{each.baseline.label}`" for each in choice.tested)))
    for entrant in choice.baselines:
        rows.append((f"`{entrant.label}`", *(_goodput(each, entrant) for each in choice.tested)))
    for entrant in choice.best_of_seeds:
        mark = ", chosen" if entrant.seed == choice.chosen.seed else ""
        rows.append((f"best of training {entrant.label}{mark}", *(_goodput(each, entrant) for each in choice.tested)))
    rows.append(("ceiling", *(f"{each.comparison.ceiling:.4f}" for each in choice.tested)))
    yield from _table(rows)
    yield ""
    yield "## Where it fails"
    yield ""
    yield "The chosen policy against the baseline: the class or family that loses most, and ratios of P99.9."
    yield ""
    rows = [("scenario", "worst class or family", "points", "TTFT", "slowdown", "in doubt")]
    rows += [_failures(each, choice.chosen) for each in choice.tested]
    yield from _table(rows)
    yield ""
    yield (
        "In doubt is what is worse than the baseline: goodput (the interval does not lie above zero), a class or "
        f"family by more than {LOST_POINTS:g} points, a P99.9 beyond {TAIL:g} times. It was trained and chosen on the "
        "scenarios named here; what it does elsewhere this card does not know."
    )


def _facts(choice: Choice) -> Iterator[str]:
    config = choice.config
    yield f"- Chosen: {choice.chosen.label}, of {len(choice.candidates)} candidates."
    yield f"- Training seeds: {', '.join(map(str, choice.seeds))}. Traces: tuning seeds {_seeds(config)}."
    yield f"- Start: {f'`{config.policy.start}`' if config.policy.start else 'none'}."
    if config.policy.hidden:
        yield f"- Hidden layers: {' and '.join(map(str, config.policy.hidden))}."
    yield f"- Budget: {config.budget:,} {_unit(config)}."
    yield "- Trained on:"
    for scenario in config.scenarios:
        plain = scenario.plain
        setting = Setting.of(plain)
        weight = f", weight {scenario.weight:g}" if scenario.weight != 1 else ""
        yield (
            f"    - {scenario.label}: {setting.traffic.name} on {setting.cluster.name} at {plain.rate:.6g} requests/s, "
            f"{setting.duration_s:g} s, predictor {setting.predictor}{weight}"
        )


def _seeds(config: TrainingConfig) -> str:
    return f"{config.seeds.first} to {config.seeds.last}"


def _unit(config: TrainingConfig) -> str:
    from .methods import method

    return method(config.method).UNIT


def _goodput(tested: Tested, entrant: Entrant) -> str:
    if not tested.ran(entrant):
        return "–"
    text = f"{tested.goodput(entrant).mean:.4f}"
    difference = tested.difference(entrant)
    if difference is None:
        return text
    return f"{text} ({_points(difference.mean)}{_ends(difference.low, difference.high)})"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f", {_points(low)} … {_points(high)}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _failures(tested: Tested, chosen: Entrant) -> tuple[str, ...]:
    groups = tested.groups(chosen)
    worst = min(groups, key=lambda name: groups[name])
    ratios = {
        "TTFT": tested.tail(chosen, lambda s: s.ttft.p999),
        "slowdown": tested.tail(chosen, lambda s: s.slowdown.p999),
    }
    difference = tested.difference(chosen)
    doubts = []
    if difference is not None and not (difference.low is not None and difference.low > 0):
        doubts.append("goodput")
    doubts += [name for name, value in groups.items() if 100 * value < -LOST_POINTS]
    doubts += [f"P99.9 of {name}" for name, value in ratios.items() if not value <= TAIL]
    shown = [f"{value:.2f}" if math.isfinite(value) else "–" for value in ratios.values()]
    return tested.name, worst, _points(groups[worst]), *shown, ", ".join(doubts) or "–"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for k, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if k == 0:
            yield "|" + "---|" * len(row)
