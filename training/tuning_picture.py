"""A search as a picture: the best goodput so far against the number of evaluations, restart by restart."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..envs.setting import Setting
from .picture import save_png
from .policy_style import PALETTE
from .tuning import Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def search_figure(search: Search) -> Figure:
    """One line per restart, a dot per candidate, and the default as a dotted line.

    Generations meet different traces. So that they can share an axis, a candidate stands as far from the default's
    mean over all traces as it was from the default on its own.

    Args:
        search: a finished search.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plan = search.plan
    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
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
    axes.axhline(search.default, color="0.2", linestyle=":", linewidth=1.5, label=f"default: {plan.default.name}")
    margin = 0.05 * max(highest - lowest, 1e-3)
    axes.set_ylim(lowest - margin, highest + margin)
    axes.set_xlim(0, plan.generations * plan.candidates * 1.01)
    seconds = Setting.of(plan.tuning_scenario).duration_s
    axes.set_xlabel(f"evaluations of each restart ({plan.traces} traces of {seconds:g} s each)")
    axes.set_ylabel("best goodput so far\n(share of requests that meet both targets)")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, frameon=False, fontsize=8)
    setting = plan.setting
    title = f"Tuning {plan.default.name} for {setting.traffic.name} on {setting.cluster.name}"
    figure.suptitle("\n".join(textwrap.wrap(title, 90)), fontsize=10, x=0.01, ha="left")
    note = "dots: candidates; goodput on tuning traces, as a gain over the default on the same traces"
    figure.supxlabel(note, fontsize=7, color="0.35")
    return figure


def draw_search(search: Search, path: Path) -> Path:
    """Writes the figure of a search.

    Args:
        search: a finished search.
        path: PNG file.

    Raises:
        OSError: it cannot be written.
    """
    save_png(search_figure(search), path)
    return path
