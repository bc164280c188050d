"""A search as a picture: the best goodput so far against the number of evaluations, restart by restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..envs.setting import Setting
from .picture import GREY, SMALL, drawing, new_figure, save_png, set_title
from .policy_style import PALETTE
from .tuning import Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def search_figure(search: Search) -> Figure:
    """One line per restart, a dot per candidate, and the default as a dotted line; call it inside `drawing()`.

    Generations meet different traces. So that they can share an axis, a candidate stands as far from the default's
    mean over all traces as it was from the default on its own.

    Args:
        search: a finished search.
    """
    plan = search.plan
    figure = new_figure(4.6)
    axes = figure.subplots()
    lowest = highest = search.default
    for restart in range(plan.restarts):
        values = np.array([search.default + c.gain for c in search.tried if c.restart == restart])
        numbers = np.arange(1, len(values) + 1)
        colour = PALETTE[restart % len(PALETTE)]
        best = np.maximum.accumulate(values)
        axes.plot(numbers, values, ".", color=colour, markersize=5, alpha=0.4, markeredgewidth=0)
        style = ("-", "--", "-.", ":")[restart // len(PALETTE) % 4]
        axes.step(numbers, best, style, where="post", color=colour, linewidth=1.8, label=f"restart {restart + 1}")
        lowest = min(lowest, float(np.quantile(values, 0.1)), float(best[0]))
        highest = max(highest, float(best[-1]))
    axes.axhline(search.default, color=GREY, linestyle=":", linewidth=1.5, label=f"default: {plan.default.name}")
    margin = 0.05 * max(highest - lowest, 1e-3)
    axes.set_ylim(lowest - margin, highest + margin)
    axes.set_xlim(0, plan.generations * plan.candidates * 1.01)
    seconds = Setting.of(plan.tuning_scenario).duration_s
    axes.set_xlabel(f"evaluations of each restart ({plan.traces} traces of {seconds:g} s each)")
    axes.set_ylabel("best goodput so far\n(share of requests that meet both targets)")
    axes.grid(True)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, frameon=False)
    setting = plan.setting
    set_title(figure, f"Tuning {plan.default.name} for {setting.traffic.name} on {setting.cluster.name}")
    note = "dots: candidates; goodput on tuning traces, as a gain over the default on the same traces"
    figure.supxlabel(note, fontsize=SMALL, color=GREY)
    return figure


def draw_search(search: Search, path: Path) -> Path:
    """Writes the figure of a search.

    Args:
        search: a finished search.
        path: PNG file.

    Raises:
        OSError: it cannot be written.
    """
    with drawing():
        figure = search_figure(search)
    save_png(figure, path)
    return path
