"""An explanation as tables, for terminal, page and files."""

from __future__ import annotations

from typing import Any

from ..report.tables import Table
from ..scenario_check import rounded
from ..table import number, points
from .assignment import GroupShares
from .dependence import Dependence
from .explanation import Explanation, Portrait
from .probing import WHOLE

MOST_SHOWN = 12
"""Inputs, features and terms of a pool that a table shows: those on which most depends."""

Row = dict[str, Any]


def effect_table(found: Explanation) -> Table:
    """Goodput by class and family before and after."""
    rows = [
        (
            _group_name(each.kind, each.name),
            (
                f"{each.requests:,}",
                number(each.ceiling, 3),
                number(each.before.mean, 3),
                number(each.after.mean, 3),
                points(each.difference),
            ),
        )
        for each in found.effects
    ]
    return Table(
        name="effects",
        title="Goodput by class and family",
        note=f"Points: hundredths of goodput, {found.policy.label} − {found.against.label}. Intervals: "
        f"{found.interval}.",
        columns=("requests", "ceiling", found.against.label, found.policy.label, "points"),
        rows=tuple(rows),
        first="requests of",
    )


def tail_table(found: Explanation) -> Table:
    """The far end of the delays before and after."""
    rows = [(each.name, (number(each.before, each.digits), number(each.after, each.digits))) for each in found.tails]
    return Table(
        name="tails",
        title="The far end",
        note="Quantiles: mean over the seeds of each seed's; longest: of all runs.",
        columns=(found.against.label, found.policy.label),
        rows=tuple(rows),
        first="number",
    )


def assignment_table(found: Explanation, portrait: Portrait, pool: str) -> Table:
    """Where the requests of each group go, in per cent of the group; of all also their tokens."""
    everything, *groups = portrait.assignment[pool]
    rows = [("all requests", _per_cent(everything)), (f"all {tokens_of(pool)}", _per_cent(everything, tokens=True))]
    rows += [(_group_name(each.kind, each.name), _per_cent(each)) for each in groups]
    return Table(
        name=f"assignment-{pool}-{found.portraits.index(portrait)}",
        title=f"{pool} instances under {portrait.label}",
        note="Per cent of the requests of a group, row by row; prompt and predicted tokens by tenths of the requests.",
        columns=tuple(str(i) for i in range(found.pools[pool])),
        rows=tuple(rows),
        first="requests of",
    )


def input_table(found: Explanation, pool: str) -> Table:
    """How often another value of an input would have changed the choice in a pool."""
    known = [portrait for portrait in found.portraits if portrait.inputs is not None]
    names = [(each.of, each.name) for each in (known[0].inputs if known else None) or ()]
    values = [
        {(each.of, each.name): each.changed[pool] for each in portrait.inputs or ()} for portrait in found.portraits
    ]
    names = [name for name in names if any(each.get(name, 0) > 0 for each in values)]
    names.sort(key=lambda name: -max(each.get(name, 0.0) for each in values))
    rows = [
        (f"{of}: {name}", tuple(_share(each, (of, name)) for each in values)) for of, name in names[: MOST_SHOWN + 3]
    ]
    return Table(
        name=f"inputs-{pool}",
        title=f"What the {pool} choice depends on",
        note="Per cent of the decisions that change when this input is as it was at another decision, all else being "
        f"as it was; {WHOLE}: all columns of these instances, or of the request, at once.",
        columns=tuple(portrait.label for portrait in found.portraits),
        rows=tuple(rows),
        first="input",
    )


def feature_table(portrait: Portrait, pool: str) -> Table:
    """How often another value of a feature would have changed the least cost in a pool, and its margin."""
    rows = [
        (f"{each.of}: {each.name}", (number(100 * each.changed[pool], 1), number(100 * each.margin[pool], 1)))
        for each in features_of(portrait, pool)
    ]
    return Table(
        name=f"features-{pool}",
        title=f"Features that the {pool} costs of {portrait.label} depend on",
        note="Per cent of the decisions that change when this feature is as it was at another decision, and per cent "
        "of the margin (the least of the other costs − the least cost) that goes with it.",
        columns=("changed", "margin lost"),
        rows=tuple(rows[:MOST_SHOWN]),
        first="feature",
    )


def term_table(portrait: Portrait, pool: str) -> Table:
    """The terms that tell instances of a pool apart most."""
    terms = [term for term in (portrait.costs.terms if portrait.costs else ()) if term.pool == pool]
    terms.sort(key=lambda term: -term.spread)
    rows = [(t.name, (f"{t.weight:+.3f}", number(t.spread, 4), f"{t.chosen:+.4f}")) for t in terms if t.spread > 0]
    return Table(
        name=f"terms-{pool}",
        title=f"Terms of {portrait.label} on {pool} instances",
        note="Contribution: weight · (value − mean of the pool). Spread: mean of its size over decisions and "
        "instances; chosen: its mean on the chosen instance, below 0 where the term speaks for it.",
        columns=("weight", "spread", "chosen"),
        rows=tuple(rows[:MOST_SHOWN]),
        first="term",
    )


def agreement_table(found: Explanation) -> Table:
    """How often rules choose what the two policies choose."""
    pools = list(found.pools)
    rules = dict.fromkeys(each.rule for portrait in found.portraits for each in portrait.agreement)
    columns, cells = [], []
    for portrait in found.portraits:
        known = {each.rule: each for each in portrait.agreement}
        for pool in pools:
            columns.append(f"{portrait.label}, {pool}")
            cells.append({rule: number(100 * each.shares[pool], 1) for rule, each in known.items()})
    return Table(
        name="agreement",
        title="Agreement with simple rules",
        note="Per cent of the decisions in which the rule, asked at the same moment, names the same instance; "
        "random shows what chance does.",
        columns=tuple(columns),
        rows=tuple((rule, tuple(each.get(rule, "–") for each in cells)) for rule in rules),
        first="rule",
    )


def files(found: Explanation) -> dict[str, list[Row]]:
    """Rows of every CSV file, by name; shares as fractions, times as in the names."""
    return {
        "effects": [_effect_row(each) for each in found.effects],
        "tails": [{"number": t.name, "before": rounded(t.before), "after": rounded(t.after)} for t in found.tails],
        "assignment": [row for portrait in found.portraits for row in _assignment_rows(portrait)],
        "inputs": [
            row for portrait in found.portraits for row in _dependence_rows(portrait.label, portrait.inputs or ())
        ],
        "features": [
            row
            for portrait in found.portraits
            for row in _dependence_rows(portrait.label, portrait.costs.features if portrait.costs else ())
        ],
        "terms": [
            {"policy": portrait.label, "pool": t.pool, "term": t.name, "weight": t.weight}
            | {"spread": rounded(t.spread), "chosen": rounded(t.chosen)}
            for portrait in found.portraits
            for t in (portrait.costs.terms if portrait.costs else ())
        ],
        "agreement": [
            {"policy": portrait.label, "rule": each.rule, "pool": pool, "agreement": rounded(share)}
            | {"in_every_pool": rounded(each.both), "decisions": each.decisions}
            for portrait in found.portraits
            for each in portrait.agreement
            for pool, share in each.shares.items()
        ],
    }


def features_of(portrait: Portrait, pool: str) -> list[Dependence]:
    """Features whose other values change choices or margins in a pool, the strongest first."""
    found = portrait.costs.features if portrait.costs else ()
    some = [each for each in found if each.changed[pool] > 0 or abs(each.margin[pool]) > 0.005]
    return sorted(some, key=lambda each: (-each.changed[pool], -abs(each.margin[pool])))


def tokens_of(pool: str) -> str:
    """What counts as tokens on instances of a pool."""
    return "prompt tokens" if pool == "prefill" else "output tokens"


def _group_name(kind: str, name: str) -> str:
    return "all" if kind == "all" else f"{kind} {name}"


def _per_cent(group: GroupShares, *, tokens: bool = False) -> tuple[str, ...]:
    return tuple(f"{100 * share:.0f}" for share in (group.of_tokens if tokens else group.of_requests))


def _share(values: dict[tuple[str, str], float], name: tuple[str, str]) -> str:
    return number(100 * values[name], 1) if name in values else "–"


def _effect_row(each: Any) -> Row:
    row: Row = {"group": each.kind, "name": each.name, "requests": each.requests, "ceiling": rounded(each.ceiling)}
    for words, estimate in (("before", each.before), ("after", each.after), ("difference", each.difference)):
        row |= {words: rounded(estimate.mean)}
        row |= {f"{words}_low": rounded(estimate.low), f"{words}_high": rounded(estimate.high)}
    return row


def _assignment_rows(portrait: Portrait) -> list[Row]:
    return [
        {"policy": portrait.label, "pool": pool, "group": each.kind, "name": each.name, "requests": each.requests}
        | {"instance": i, "of_requests": rounded(float(of_requests)), "of_tokens": rounded(float(of_tokens))}
        for pool, groups in portrait.assignment.items()
        for each in groups
        for i, (of_requests, of_tokens) in enumerate(zip(each.of_requests, each.of_tokens, strict=True))
    ]


def _dependence_rows(label: str, found: tuple[Dependence, ...]) -> list[Row]:
    return [
        {"policy": label, "of": each.of, "name": each.name, "pool": pool, "changed": rounded(share)}
        | ({"margin_lost": rounded(each.margin[pool])} if each.margin else {})
        | {"decisions": each.decisions}
        for each in found
        for pool, share in each.changed.items()
    ]


