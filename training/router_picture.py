"""A study of several routers as a picture: goodput, and what each router more costs, policy by policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .picture import GREY, drawing, legend_height, new_figure, save_png, set_legend
from .policy_style import policy_styles
from .report.slo_scale import draw_curve
from .router_study import RouterStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def router_figure(found: RouterStudy) -> Figure:
    """Goodput against the number of routers, and beside it the change in points; call it inside `drawing()`."""
    styles = policy_styles(found.labels)
    figure = new_figure(4.0 + legend_height(styles))
    left, right = figure.subplots(1, 2)
    opacity = min(0.15, 0.8 / len(styles))  # Many bands lie on one another.
    for label, style in styles.items():
        draw_curve(left, found.goodput[label], style, 1.0, opacity)
        draw_curve(right, found.change[label], style, 100.0, opacity)
    few = found.counts[0]
    left.set_ylabel("goodput (share of requests)")
    right.set_ylabel(f"change from {few} router{'s' if few > 1 else ''} (points)")
    right.axhline(0.0, color=GREY, linewidth=1.0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(found.counts, [str(count) for count in found.counts])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(f"routers, dealt requests {'in turn' if found.dealing == 'round-robin' else 'at random'}")
        axes.grid(True)
    bands = "95 % intervals" if found.has_intervals else "from the lowest to the highest trace"
    set_legend(figure, f"Goodput against the number of routers: {found.title}; bands: {bands}", styles)
    return figure


def draw_study(found: RouterStudy, path: Path) -> Path:
    """Writes the figure of a study.

    Raises:
        OSError: it cannot be written.
    """
    with drawing():
        figure = router_figure(found)
    save_png(figure, path)
    return path
