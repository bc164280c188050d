"""The figure of groups: goodput of each SLO class and workload family, policy by policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...envs.cluster import PS_PER_S
from ...envs.trace import SLO_CLASSES
from ..comparison import mean_over_runs
from ..picture import GREY, SMALL, keep_shares, legend_height, new_figure, set_legend
from ..statistics import BLOCK_S, Estimate, mean_over_seeds, share_in_blocks
from ..summary import SEGMENT_S, Share, Summary
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...envs.window import Window
    from ..policy_style import Style
    from ..stored_records import StoredRecords


@dataclass(frozen=True)
class Group:
    """Requests of one SLO class or one workload family.

    Attributes:
        kind: class or family.
        name: its name.
        requests: measured requests of each policy, all runs together.
        ceiling: share of them that meets both targets alone on the empty cluster; NaN where unknown.
        goodput: by policy, with interval where there is one.
    """

    kind: str
    name: str
    requests: int
    ceiling: float
    goodput: dict[str, Estimate]


def groups(material: Material) -> list[Group]:
    """The SLO classes and the workload families that have requests, classes first."""
    first = [run.summary for run in material.results.runs[material.labels[0]]]
    names = [("class", name) for name in SLO_CLASSES]
    families = list(dict.fromkeys(name for summary in first for name in summary.by_family))
    names += [("family", name) for name in families if len(families) > 1]
    found = []
    for kind, name in names:
        requests = sum(_share(summary, kind, name).requests for summary in first)
        if requests:
            goodput = {label: _estimate(material, label, kind, name) for label in material.labels}
            ceiling = mean_over_runs(first, lambda s, name=name: s.ceilings.get(name, math.nan))  # type: ignore[misc]
            found.append(Group(kind, name, requests, ceiling, goodput))
    return found


def draw_groups(material: Material) -> Figure:
    """A block of rows per class and family, a row per policy: mean and interval, and the ceiling of the group."""
    found, rows = groups(material), len(material.labels)
    room = rows + 1.5
    figure = new_figure(1.3 + 0.16 * room * len(found) + legend_height(material.styles))
    axes = figure.subplots()
    for k, group in enumerate(found):
        for row, (label, estimate) in enumerate(group.goodput.items()):
            _draw_estimate(axes, k * room + row, estimate, material.styles[label])
        if math.isfinite(group.ceiling):
            ends = (k * room - 0.6, k * room + rows - 0.4)
            axes.plot([group.ceiling] * 2, ends, color=GREY, linestyle=(0, (1, 1)), linewidth=1.4)
        if k:
            axes.axhline(k * room - 1.25, color="0.85", linewidth=0.8)
    middle = [k * room + (rows - 1) / 2 for k in range(len(found))]
    axes.set_yticks(middle, [f"{g.kind} {g.name}\n{g.requests:,} requests" for g in found])
    axes.set_ylim(len(found) * room - 1.0, -1.0)
    axes.tick_params(axis="y", length=0, labelsize=SMALL)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    keep_shares(axes, along_x=True)
    axes.set_xlabel("goodput (share of the group's requests that meet both targets); dotted: ceiling")
    set_legend(figure, f"Goodput by class and family: {material.results.title}", material.styles)
    return figure


def _draw_estimate(axes: Axes, place: float, estimate: Estimate, style: Style) -> None:
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [place] * 2, color=style.colour, linewidth=2.5, alpha=0.5)
    axes.plot([estimate.mean], [place], style.marker, color=style.colour, markersize=5.5)


def _estimate(material: Material, label: str, kind: str, name: str) -> Estimate:
    runs = material.results.runs[label]
    shares = [_share(run.summary, kind, name) for run in runs]
    if not material.results.single:
        return mean_over_seeds([share.goodput for share in shares if share.requests])
    if label in material.records:
        window = material.results.description.window
        requests, met = in_segments(material.records[label], kind, name, window)
        with np.errstate(invalid="ignore"):  # A resample without a request of the group has no goodput.
            estimate = share_in_blocks(met, requests, block=round(BLOCK_S / SEGMENT_S))
        if estimate.low is not None and math.isfinite(estimate.low):
            return estimate
    return Estimate(shares[0].goodput, None, None, (shares[0].goodput,))


def in_segments(run: StoredRecords, kind: str, name: str, window: Window) -> tuple[list[int], list[int]]:
    """Arrivals of a group in each contiguous segment of the window, and those that met both targets.

    Args:
        run: the records.
        kind: class or family.
        name: of the group.
        window: the measurement window.

    Returns:
        Two counts per segment of `SEGMENT_S` seconds.
    """
    index = run.trace.slo if kind == "class" else run.trace.family
    names = SLO_CLASSES if kind == "class" else run.trace.families
    mine = run.measured & (index == (names.index(name) if name in names else -1))
    width = round(SEGMENT_S * PS_PER_S)
    segment, segments = (run.due - window.start) // width, -(-(window.end - window.start) // width)
    counts = [np.bincount(segment[which], minlength=segments).tolist() for which in (mine, mine & run.met)]
    return counts[0], counts[1]


def _share(summary: Summary, kind: str, name: str) -> Share:
    return (summary.by_class if kind == "class" else summary.by_family).get(name, Share(requests=0, met=0))
