"""The board as pictures: scores over all, scores by scenario, and performance profiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..picture import GREY, SMALL, drawing, legend_height, new_figure, png_bytes, set_legend, set_title
from ..policy_style import policy_colour, policy_styles
from .board import Board
from .scores import Floats, pooled, profile, resampled
from .tables import FLAG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "PuOr"
"""Orange below score 0, purple above it: both ends are told apart by people with any colour vision."""

LEAST_SHOWN = -1.5
"""Where the axis of the scores begins; of what lies below, the number is written there."""

MOST_PROFILES = 6
"""Policies of the profiles: more lines hide each other."""


def leaderboard_figure(board: Board) -> Figure:
    """Score over all with its interval, policy by policy; call it inside `drawing()`."""
    shown = list(reversed(board.overalls))
    left = max(LEAST_SHOWN, min(-0.1, min(each.score.mean for each in shown) - 0.1))
    figure = new_figure(1.0 + 0.2 * len(shown))
    axes = figure.subplots()
    for y, each in enumerate(shown):
        colour = policy_colour(each.label)
        if each.score.mean < left:
            axes.annotate(f"◂ {each.score.mean:.1f}", (left, y), (3, 0), textcoords="offset points", va="center")
            continue
        if each.score.low is not None and each.score.high is not None:
            axes.plot([each.score.low, each.score.high], [y, y], color=colour, linewidth=2.5, alpha=0.6)
        axes.plot([each.score.mean], [y], marker="o", color=colour, markerfacecolor=colour if each.ranked else "white")
    axes.axvline(0.0, color=GREY, linewidth=1.0)
    axes.axvline(1.0, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(shown)), [each.label for each in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=left)
    axes.grid(True, axis="x")
    axes.set_xlabel(f"score: interquartile mean, 0 is {board.plan.roster.zero}, 1 the best known of each scenario")
    hollow = "hollow: a guard is broken, or runs are missing"
    set_title(figure, f"{_title(board)}; bars: 95 % intervals; {hollow}")
    return figure


def score_figure(board: Board) -> Figure:
    """Policies down, scenarios across; call it inside `drawing()`."""
    import numpy as np

    values = np.full((len(board.overalls), len(board.results)), math.nan)
    figure = new_figure(1.9 + 0.22 * len(board.overalls))
    axes = figure.subplots()
    for x, result in enumerate(board.results):
        for y, each in enumerate(board.overalls):
            standing = result.standings.get(each.label)
            if standing is None:
                continue
            values[y, x] = standing.score.mean
            flag = FLAG if standing.guards.breaches else ""
            dark = abs(standing.score.mean) > 0.65
            text = f"{standing.score.mean:.1f}{flag}"
            axes.text(x, y, text, ha="center", va="center", fontsize=SMALL - 1.5, color="white" if dark else "black")
    axes.imshow(values, cmap=COLOURS, vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(range(len(board.results)), [result.name for result in board.results], rotation=40, ha="right")
    axes.set_yticks(range(len(board.overalls)), [each.label for each in board.overalls])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    set_title(figure, f"Scores by scenario; {FLAG}: a guard is broken")
    return figure


def profile_figure(board: Board) -> Figure:
    """Share of the runs above each score, of the best policies and of the reference; call it inside `drawing()`."""
    import numpy as np

    styles = policy_styles(profiled(board))
    figure = new_figure(3.6 + legend_height(styles))
    axes = figure.subplots()
    at: Floats = np.linspace(-0.5, 1.5, 81)
    for label, style in styles.items():
        strata = board.strata(label)
        values, weights = pooled(strata)
        axes.plot(at, profile(values, weights, at), color=style.colour, linestyle=style.line)
        low, high = np.quantile(profile(resampled(strata), weights, at), (0.025, 0.975), axis=0)
        axes.fill_between(at, low, high, color=style.colour, alpha=0.12, linewidth=0)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(-0.02, 1.02)
    axes.grid(True)
    axes.set_xlabel("score")
    axes.set_ylabel("share of runs with a higher score")
    set_legend(figure, f"Performance profiles: {_title(board)}; bands: 95 % intervals", styles)
    return figure


def profiled(board: Board) -> list[str]:
    """The policies of the profiles: the first ones of the board that ran everywhere, and the reference."""
    whole = [each.label for each in board.overalls if each.whole and each.label != board.plan.roster.zero]
    reference = board.plan.roster.reference
    labels = sorted(whole, key=lambda label: -_score_of(board, label))[:MOST_PROFILES]
    return labels if reference in labels or reference not in whole else [*labels, reference]


def _score_of(board: Board, label: str) -> float:
    return next(each.score.mean for each in board.overalls if each.label == label)


def leaderboard_png(board: Board) -> bytes:
    """As PNG; the same board gives the same bytes."""
    with drawing():
        figure = leaderboard_figure(board)
    return png_bytes(figure)


def score_png(board: Board) -> bytes:
    """As PNG; the same board gives the same bytes."""
    with drawing():
        figure = score_figure(board)
    return png_bytes(figure)


def profile_png(board: Board) -> bytes:
    """As PNG; the same board gives the same bytes."""
    with drawing():
        figure = profile_figure(board)
    return png_bytes(figure)


def _title(board: Board) -> str:
    count = len(board.results)
    text = f"{count} scenario{'s' if count > 1 else ''}"
    return f"{text} ({board.mark})" if board.mark else text
