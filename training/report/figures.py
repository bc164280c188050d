"""The figures of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..picture import drawing, png_bytes
from .balance import draw_balance
from .delays import draw_delays
from .goodput import draw_goodput
from .groups import draw_groups
from .material import Material
from .slo_scale import draw_slo_scale
from .timeline import draw_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """One figure of every report.

    Attributes:
        name: of the file, without ending.
        title: on the page.
        reading: one sentence that says how to read it.
        draw: makes it.
        needs_records: whether it is made from records.
    """

    name: str
    title: str
    reading: str
    draw: Callable[[Material], Figure]
    needs_records: bool


FIGURES = (
    FigureKind(
        "goodput",
        "Goodput per policy",
        "A marker is a policy's mean, the bar its interval, a dot one trace, the dotted line the ceiling; on the "
        "right, a bar that stays clear of the line at zero is a difference that the traces support.",
        draw_goodput,
        False,
    ),
    FigureKind(
        "slo-scale",
        "Goodput against the scale of the SLOs",
        "At 1 the targets are as given, to the left they are stricter; a line is a policy's mean and the band its "
        "interval (with fewer than four seeds the span of the values), on the right those of its difference to the "
        "baseline, paired by seed.",
        draw_slo_scale,
        False,
    ),
    FigureKind(
        "groups",
        "Goodput by class and family",
        "Each block is one SLO class or workload family: a marker is a policy's mean, the bar its interval, and the "
        "dotted line the ceiling of the group.",
        draw_groups,
        False,
    ),
    FigureKind(
        "delays",
        "Delays against the targets",
        "The share of requests that wait longer than the time below it, so that lower is better; the marker on the "
        "dotted target is the share that misses it.",
        draw_delays,
        True,
    ),
    FigureKind(
        "balance",
        "Balance over time",
        "The line is the load of the mean instance of a pool, the band reaches from the least to the most loaded "
        "one: the wider the band (and the larger its coefficient of variation, CV), the less even the policy.",
        draw_balance,
        True,
    ),
    FigureKind(
        "timeline",
        "The cluster under a burst",
        "Above, arrivals per second, in colour those that missed; below, the requests on each instance, dark in "
        "service and light waiting; a tick marks a miss at its arrival on the instance where it lost most of its "
        "time, and the number on the right counts them.",
        draw_timeline,
        True,
    ),
)


def draw_figures(material: Material) -> dict[str, bytes]:
    """PNG of each figure that can be made, by name; those of records are left out where there are none."""
    images = {}
    for kind in FIGURES:
        if material.records or not kind.needs_records:
            with drawing():
                figure = kind.draw(material)
            images[kind.name] = png_bytes(figure)
    return images
