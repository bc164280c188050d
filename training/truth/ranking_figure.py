"""The figure of the ranking: each policy's goodput, measured and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..picture import GREY, SMALL, keep_shares, new_figure, set_title
from ..table import wrap_label
from .tables import tau_words
from .truth import Truth

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_ranking(truth: Truth) -> Figure:
    """A row per policy: the full marker and the bar are measured, the hollow marker is simulated."""
    ranking = truth.ranking
    figure = new_figure(1.6 + 0.5 * len(ranking.measured))
    axes = figure.subplots()
    for place, (label, (mean, low, high)) in enumerate(ranking.measured.items()):
        style, simulated = truth.styles[label], ranking.simulated[label]
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=style.colour, linewidth=3, alpha=0.4)
        axes.plot([mean], [place], style.marker, color=style.colour, markersize=7)
        axes.plot([simulated], [place + 0.22], style.marker, color=style.colour, markersize=7, mfc="white")
        for value, at, up in ((mean, place, 6), (simulated, place + 0.22, -12)):
            axes.annotate(
                f"{value:.3f}", (value, at), xytext=(0, up), textcoords="offset points", ha="center", fontsize=SMALL
            )
    axes.set_yticks(range(len(ranking.measured)), [wrap_label(label, 26) for label in ranking.measured])
    axes.set_ylim(len(ranking.measured) - 0.3, -0.6)
    axes.set_xlabel("goodput of the compared requests (share)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, color=GREY)
    axes.margins(x=0.12)
    keep_shares(axes, along_x=True)
    set_title(figure, f"Full: measured, hollow: simulated. {tau_words(truth)} {truth.results.title}")
    return figure
