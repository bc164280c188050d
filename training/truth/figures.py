"""The figures of a comparison with the simulator, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..picture import drawing, png_bytes
from .distribution_figures import draw_distributions, draw_quantiles
from .error_figures import draw_errors, draw_scatter
from .ranking_figure import draw_ranking
from .residual_figure import draw_residuals
from .truth import Truth

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TruthFigure:
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
    draw: Callable[[Truth], Figure]


FIGURES = (
    TruthFigure(
        "errors",
        "Errors request by request",
        "The share of requests whose error is at most as large as the value below it, so that a line further to the "
        "left is better; the marker is the median.",
        draw_errors,
    ),
    TruthFigure(
        "scatter",
        "Measured against simulated",
        "A dot is a request; on the line both agree, within the band they differ by at most a tenth.",
        draw_scatter,
    ),
    TruthFigure(
        "quantiles",
        "Quantiles against quantiles",
        "From P1 on the left to P99 on the right, how far the simulated quantile lies above the measured one, in per "
        "cent of it; the marker is the median.",
        draw_quantiles,
    ),
    TruthFigure(
        "distributions",
        "Distributions",
        "The share of requests that wait longer than the time below it: full lines as measured, broken ones as "
        "simulated; a row is a policy.",
        draw_distributions,
    ),
    TruthFigure(
        "residuals",
        "Where the error comes from",
        "Measured − simulated of each request against what may drive it; the line joins the medians of bins with about "
        "as many requests each, the band reaches from their first to their third quartile.",
        draw_residuals,
    ),
    TruthFigure(
        "ranking",
        "Do the policies rank the same?",
        "The full marker is a policy's measured goodput with its interval, the hollow one the simulated goodput of the "
        "same requests.",
        draw_ranking,
    ),
)


def draw_figures(truth: Truth) -> dict[str, bytes]:
    """PNG of each figure, by name."""
    images = {}
    for kind in FIGURES:
        with drawing():
            figure = kind.draw(truth)
        images[kind.name] = png_bytes(figure)
    return images
