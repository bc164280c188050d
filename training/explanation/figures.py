"""The figures of an explanation, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..picture import GREY, SMALL, TEXT, drawing, new_figure, png_bytes, set_title, wrap_title
from ..policy_style import Style
from ..table import wrap_label
from .assignment import GroupShares
from .explanation import Explanation
from .tables import features_of, tokens_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MOST_WRITTEN = 8
"""Instances up to which a heat map says its shares in numbers."""

MOST_BARS = 12
"""Inputs, features and terms of a pool that a figure shows."""

SHADES = "Blues"
"""One hue from light to dark: order shows whatever one's colour vision."""


@dataclass(frozen=True)
class ExplanationFigure:
    """One figure.

    Attributes:
        name: of the file, without ending.
        title: on the page.
        reading: one sentence that says how to read it.
        draw: makes it.
    """

    name: str
    title: str
    reading: str
    draw: Callable[[], Figure]


def figures_of(found: Explanation) -> list[ExplanationFigure]:
    """The figures that can be made of an explanation."""
    kinds = [
        ExplanationFigure(
            "effects",
            "Where does it win?",
            "A marker is the mean difference of a group's goodput in points, the bar its interval, right of the line "
            "where the explained policy is better.",
            partial(draw_effects, found),
        )
    ]
    kinds += [
        ExplanationFigure(
            f"assignment-{pool}",
            f"Which requests go to which {pool} instance?",
            "A row is a group of requests, a column an instance: the darker, the larger the share of the group's "
            "requests that goes there; the second row is the share of all tokens.",
            partial(draw_assignment, found, pool),
        )
        for pool in found.pools
    ]
    if any(portrait.inputs is not None for portrait in found.portraits):
        kinds.append(
            ExplanationFigure(
                "inputs",
                "What do choices depend on?",
                "A bar is the share of decisions that change when one input is as it was at another decision.",
                partial(draw_inputs, found),
            )
        )
    costs = found.policy.costs
    if costs is not None:
        kinds.append(
            ExplanationFigure(
                "features",
                "Which features do its costs depend on?",
                "A bar is the share of decisions whose least cost is another one when one feature is as it was at "
                "another decision; the number beside it is the share of the margin that goes with it.",
                partial(draw_features, found),
            )
        )
        if costs.terms:
            kinds.append(
                ExplanationFigure(
                    "terms",
                    "What does each term do?",
                    "A bar is how far a term spreads the costs of a pool, the dot its mean on the chosen instance: "
                    "left of zero it speaks for the choice.",
                    partial(draw_terms, found),
                )
            )
    kinds.append(
        ExplanationFigure(
            "agreement",
            "Which simple rule is it like?",
            "A bar is the share of decisions in which a rule, asked at the same moment, names the same instance.",
            partial(draw_agreement, found),
        )
    )
    return kinds


def draw_figures(kinds: Sequence[ExplanationFigure]) -> dict[str, bytes]:
    """PNG of each figure, by name."""
    images = {}
    for kind in kinds:
        with drawing():
            figure = kind.draw()
        images[kind.name] = png_bytes(figure)
    return images


def draw_effects(found: Explanation) -> Figure:
    """A row per group: the difference with its interval."""
    figure = new_figure(1.1 + 0.34 * len(found.effects))
    axes = figure.subplots()
    style = found.styles[found.policy.label]
    for row, each in enumerate(found.effects):
        difference = each.difference
        if difference.low is not None and difference.high is not None:
            ends = [100 * difference.low, 100 * difference.high]
            axes.plot(ends, [row, row], color=style.colour, linewidth=3, alpha=0.5)
        axes.plot([100 * difference.mean], [row], style.marker, color=style.colour, markersize=6)
        text = f"{each.before.mean:.3f} → {each.after.mean:.3f}"
        axes.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL)
    axes.axvline(0.0, color=GREY, linewidth=1.0)
    _name_rows(axes, [each.name if each.kind == "all" else f"{each.kind} {each.name}" for each in found.effects])
    axes.set_xlabel("difference (points of goodput)")
    axes.grid(axis="x")
    set_title(figure, f"Goodput by class and family, {found.title}")
    return figure


def draw_assignment(found: Explanation, pool: str) -> Figure:
    """Groups over the instances of a pool, the explained policy on the left."""
    groups = [portrait.assignment[pool] for portrait in found.portraits]
    names = list(dict.fromkeys((each.kind, each.name) for some in groups for each in some[1:]))
    figure = new_figure(1.6 + 0.22 * (len(names) + 2))
    left, right = figure.subplots(1, 2, sharey=True)
    darkest = max(float(each.of_requests.max()) for some in groups for each in some)
    for axes, portrait, some in zip((left, right), found.portraits, groups, strict=True):
        image = _heat_map(axes, some, names, darkest)
        axes.set_title(wrap_label(portrait.label, 34), loc="left")
        axes.set_xlabel(f"{pool} instance")
    labels = ["all requests", f"all {tokens_of(pool)}", *(f"{kind} {name}" for kind, name in names)]
    left.set_yticks(range(len(labels)), labels)
    bar = figure.colorbar(image, ax=[left, right], fraction=0.04, pad=0.01)
    bar.set_label("share of the group's requests", color=GREY)
    set_title(figure, f"Which requests go where: {found.description.title(found.seeds)}")
    return figure


def draw_inputs(found: Explanation) -> Figure:
    """Bars by input, a panel per pool, a colour per policy."""
    panels = {}
    for pool in found.pools:
        changed = {
            portrait.label: {f"{each.of}: {each.name}": each.changed[pool] for each in portrait.inputs or ()}
            for portrait in found.portraits
        }
        names = list(dict.fromkeys(name for values in changed.values() for name in values))
        panels[pool] = _strongest(names, changed)
    return _bars(found, panels, "decisions that change (%)", f"What choices depend on: {found.title}")


def draw_agreement(found: Explanation) -> Figure:
    """Bars by rule, a panel per pool, a colour per policy."""
    panels = {
        pool: {
            rule: {
                portrait.label: each.shares[pool]
                for portrait in found.portraits
                for each in portrait.agreement
                if each.rule == rule
            }
            for rule in dict.fromkeys(each.rule for portrait in found.portraits for each in portrait.agreement)
        }
        for pool in found.pools
    }
    return _bars(found, panels, "decisions alike (%)", f"Agreement with simple rules: {found.title}")


def draw_features(found: Explanation) -> Figure:
    """Bars by feature, a panel per pool."""
    portrait = found.policy
    rows = {pool: features_of(portrait, pool)[:MOST_BARS] for pool in found.pools}
    figure, grid = _panels(max(len(some) for some in rows.values()), len(rows))
    style = found.styles[portrait.label]
    for axes, (pool, some) in zip(grid, rows.items(), strict=True):
        for row, each in enumerate(some):
            changed = 100 * each.changed[pool]
            axes.barh(row, changed, height=0.7, color=style.colour, alpha=0.75)
            axes.annotate(
                f"{round(100 * each.margin[pool]) + 0} %",
                (changed, row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
                color=GREY,
            )
        _name_rows(axes, [f"{each.of}: {each.name}" for each in some])
        axes.set_xlabel("decisions that change (%)")
        axes.set_title(f"{pool} costs", loc="left")
        axes.grid(axis="x")
    set_title(figure, f"Features of {portrait.label}: {found.description.title(found.seeds)}")
    return figure


def draw_terms(found: Explanation) -> Figure:
    """Bars by term of `linear`, a panel per pool; a dot for the chosen instance."""
    portrait = found.policy
    terms = portrait.costs.terms if portrait.costs else ()
    rows = {
        pool: sorted((t for t in terms if t.pool == pool and t.spread > 0), key=lambda t: -t.spread)[:MOST_BARS]
        for pool in found.pools
    }
    figure, grid = _panels(max(len(some) for some in rows.values()), len(rows))
    style = found.styles[portrait.label]
    for axes, (pool, some) in zip(grid, rows.items(), strict=True):
        for row, term in enumerate(some):
            axes.barh(row, term.spread, height=0.7, color=style.colour, alpha=0.35)
            axes.plot([term.chosen], [row], "o", color=style.colour, markersize=4.5)
        axes.axvline(0.0, color=GREY, linewidth=1.0)
        _name_rows(axes, [f"{term.name} ({term.weight:+.2f})" for term in some])
        axes.set_xlabel("contribution to the cost")
        axes.set_title(f"{pool} terms (weight)", loc="left")
        axes.grid(axis="x")
    set_title(figure, f"Terms of {portrait.label}: {found.description.title(found.seeds)}")
    return figure


def _heat_map(axes: Axes, groups: list[GroupShares], names: list[tuple[str, str]], darkest: float) -> AxesImage:
    everything = groups[0]
    known = {(each.kind, each.name): each.of_requests for each in groups[1:]}
    nothing = np.full(len(everything.of_requests), np.nan)
    values = np.stack([everything.of_requests, everything.of_tokens, *(known.get(name, nothing) for name in names)])
    image = axes.imshow(values, cmap=SHADES, vmin=0.0, vmax=darkest, aspect="auto")
    kinds = ["all", "all", *(kind for kind, _ in names)]
    for row in range(1, len(kinds)):
        if kinds[row] != kinds[row - 1]:
            axes.axhline(row - 0.5, color="white", linewidth=3)
    if values.shape[1] <= MOST_WRITTEN:
        for (y, x), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if value > 0.6 * darkest else "black"
                axes.text(x, y, f"{100 * value:.0f}", ha="center", va="center", fontsize=SMALL, color=colour)
        axes.set_xticks(range(values.shape[1]))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _strongest(names: list[str], changed: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The names on which most depends, with the value of each policy."""
    most = {name: max(values.get(name, 0.0) for values in changed.values()) for name in names}
    kept = [name for name in sorted(names, key=lambda name: -most[name]) if most[name] > 0][:MOST_BARS]
    return {
        name: {label: values[name] for label, values in changed.items() if name in values} for name in kept
    }


def _bars(found: Explanation, panels: dict[str, dict[str, dict[str, float]]], unit: str, title: str) -> Figure:
    """Horizontal bars in per cent: by panel and name, a value for each policy."""
    from matplotlib.patches import Patch

    figure, grid = _panels(max(len(rows) for rows in panels.values()), len(panels), 0.5)
    for axes, (pool, rows) in zip(grid, panels.items(), strict=True):
        for row, values in enumerate(rows.values()):
            for k, portrait in enumerate(found.portraits):
                if portrait.label in values:
                    style: Style = found.styles[portrait.label]
                    place = row + (k - 0.5) * 0.38
                    axes.barh(
                        place,
                        100 * values[portrait.label],
                        height=0.36,
                        color=style.colour,
                        hatch=style.hatch,
                        edgecolor="white",
                        linewidth=0.4,
                    )
        _name_rows(axes, [wrap_label(name, 30) for name in rows])
        axes.set_xlabel(unit)
        axes.set_title(f"{pool} instance", loc="left")
        axes.grid(axis="x")
    handles = [
        Patch(facecolor=style.colour, hatch=style.hatch, edgecolor="white", label=wrap_label(label, 60))
        for label, style in found.styles.items()
    ]
    figure.legend(
        handles=handles,
        title=wrap_title(title),
        loc="outside upper left",
        ncols=1,
        frameon=False,
        alignment="left",
        title_fontsize=TEXT,
    )
    return figure


def _panels(rows: int, count: int, more: float = 0.0) -> tuple[Figure, list[Axes]]:
    figure = new_figure(1.3 + 0.3 * max(rows, 2) + more)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
