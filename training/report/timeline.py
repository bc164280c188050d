"""The figure of the cluster under a burst: what every instance held, and where requests lost their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ..picture import SMALL, TEXT, WIDTH, new_figure, wrap_title
from ..policy_style import Style
from ..stored_records import StoredRecords
from ..table import wrap_label
from .burst import Burst, choose_policies, split_misses, worst_burst
from .in_flight import legs_of, mean_in_flight, stay
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

BINS = 240
"""Points in time at which counts are drawn, each the mean over its interval."""

_PARTS = {
    "prefill": (("queue", "queue"), ("prefill", "prefill")),
    "decode": (("offered", "transfer"), ("join", "decode")),
    "mixed": (("queue", "queue"), ("prefill", "decode")),
}
"""First and last phase of waiting, and of service, on an instance of each role."""

MOST_ROWS = 8
"""Instances of a pool that get a row each; larger pools are drawn as a map."""


@dataclass(frozen=True, eq=False)
class PoolTimeline:
    """One pool under a burst.

    Attributes:
        role: prefill, decode or mixed.
        busy: (n, BINS) requests in service: in prefill, or decoding.
        waiting: (n, BINS) requests queued, or in transit to the instance.
        missed: when the misses that lost their time here were due, s, by instance.
    """

    role: str
    busy: Floats
    waiting: Floats
    missed: tuple[Floats, ...]

    @property
    def held(self) -> Floats:
        """(n, BINS) requests on each instance."""
        return self.busy + self.waiting

    @property
    def full(self) -> float:
        """Requests at which an instance is drawn as full: the most there were, on a map nearly the most."""
        return float(np.quantile(self.held, 1.0 if len(self.held) <= MOST_ROWS else 0.995))


def pool_timelines(run: StoredRecords, pools: dict[str, int], burst: Burst) -> list[PoolTimeline]:
    """What the instances of each pool held under a burst.

    Args:
        run: records.
        pools: instances by role.
        burst: what is shown.
    """
    misses = split_misses(run, burst.holds(run) & run.measured)
    missed = {"prefill": misses.before, "decode": misses.after, "mixed": misses.before | misses.after}
    edges, due = burst_edges(burst), run.due / PS_PER_S
    timelines = []
    for leg in legs_of(run, "mixed" in pools):
        size, (waiting, busy) = pools[leg.role], _PARTS[leg.role]
        timelines.append(
            PoolTimeline(
                role=leg.role,
                busy=mean_in_flight(stay(leg, *busy), edges, size),
                waiting=mean_in_flight(stay(leg, *waiting), edges, size),
                missed=tuple(due[missed[leg.role] & (leg.instance == i)] for i in range(size)),
            )
        )
    return timelines


def burst_edges(burst: Burst) -> npt.NDArray[np.int64]:
    """(BINS + 1,) edges of the intervals over which counts are averaged, ps."""
    return np.linspace(burst.start, burst.end, BINS + 1).astype(np.int64)


def draw_timeline(material: Material) -> Figure:
    """A column per policy (at most four): arrivals and misses per second, then what each instance held."""
    results = material.results
    pools = results.description.pools
    goodput = {label: float(run.met[run.measured].mean()) for label, run in material.records.items()}
    labels = choose_policies(goodput, material.comparison.baseline)
    runs = {label: material.records[label] for label in labels}
    burst = worst_burst(runs, results.description.window)
    timelines = {label: pool_timelines(run, pools, burst) for label, run in runs.items()}
    rows = [_ARRIVALS, *(height for size in pools.values() for height in _row_heights(size))]
    headings = {label: _heading(label, run, burst) for label, run in runs.items()}
    top = _TOP + _LINE * max(heading.count("\n") for heading in headings.values())
    height = top + sum(rows) + _GAP * (len(rows) - 1) + _BOTTOM
    figure = new_figure(height, layout=None)
    grid = figure.add_gridspec(
        *(len(rows), len(labels)),
        height_ratios=rows,
        hspace=_GAP * len(rows) / sum(rows),
        wspace=0.22,
        left=_LEFT / WIDTH,
        right=1 - 0.42 / WIDTH,
        bottom=_BOTTOM / height,
        top=1 - top / height,
    )
    scales = [max(1.0, *(column[k].full for column in timelines.values())) for k in range(len(pools))]
    for column, (label, run) in enumerate(runs.items()):
        cells = [figure.add_subplot(grid[row, column]) for row in range(len(rows))]
        style = material.styles[label]
        _draw_arrivals(cells[0], run, burst, style)
        cells[0].set_title(headings[label], loc="left", fontsize=SMALL, fontweight="bold")
        rest = cells[1:]
        for timeline, full in zip(timelines[label], scales, strict=True):
            taken = len(_row_heights(len(timeline.held)))
            draw = _draw_map if len(timeline.held) > MOST_ROWS else _draw_rows
            draw(rest[:taken], timeline, full, burst, style)
            rest = rest[taken:]
        for cell in cells:
            cell.set_xlim(burst.start / PS_PER_S, burst.end / PS_PER_S)
            cell.tick_params(labelbottom=cell is cells[-1], labelleft=column == 0)
            # As far from the axes in all rows, however long the numbers beside them are.
            box = cell.get_position()
            cell.yaxis.set_label_coords(0.6 / WIDTH, (box.y0 + box.y1) / 2, figure.transFigure)
            if column:
                cell.set_ylabel("")
        cells[-1].set_xlabel("time, s")
    seconds = f"{(burst.end - burst.start) / PS_PER_S:g} s"
    words = f"The {seconds} in which {burst.why}: {results.description.title(results.seeds[:1])}"
    figure.text(0.01, 1 - 0.08 / height, wrap_title(words), va="top", fontsize=TEXT)
    _explain(figure)
    return figure


_TOP, _BOTTOM, _LEFT = 0.65, 0.75, 1.05
_ARRIVALS, _ROW, _GAP, _LINE = 0.7, 0.5, 0.1, 0.14
"""Inches."""

_LIGHT = 0.4
"""Opacity of what waits."""

_SHADES = 12
"""Shades of a map."""


def _row_heights(size: int) -> list[float]:
    """Heights of the rows that a pool takes: one per instance, or one map for all."""
    return [_ROW] * size if size <= MOST_ROWS else [min(max(0.09 * size, 1.2), 3.0)]


def _heading(label: str, run: StoredRecords, burst: Burst) -> str:
    here = burst.holds(run) & run.measured
    return f"{wrap_label(label, 24)}\n{int((here & ~run.met).sum())} of {int(here.sum())} missed"


def _draw_arrivals(axes: Axes, run: StoredRecords, burst: Burst, style: Style) -> None:
    length = (burst.end - burst.start) / PS_PER_S
    seconds = np.linspace(burst.start, burst.end, max(1, round(length)) + 1) / PS_PER_S
    here = burst.holds(run) & run.measured
    due = run.due / PS_PER_S
    for which, colour in ((here, "0.82"), (here & ~run.met, style.colour)):
        counts, _ = np.histogram(due[which], seconds)
        _fill_steps(axes, seconds, np.zeros(len(counts)), counts / np.diff(seconds), colour)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("arrivals\nper s", fontsize=SMALL, rotation=0, ha="right", va="center")


def _draw_rows(cells: list[Axes], timeline: PoolTimeline, full: float, burst: Burst, style: Style) -> None:
    edges = burst_edges(burst) / PS_PER_S
    top = 1.35 * full  # Misses are marked above the counts.
    for i, axes in enumerate(cells):
        busy, waiting = timeline.busy[i], timeline.waiting[i]
        _fill_steps(axes, edges, np.zeros(BINS), busy, style.colour)
        _fill_steps(axes, edges, busy, busy + waiting, style.colour, alpha=_LIGHT)
        axes.plot(timeline.missed[i], np.full(len(timeline.missed[i]), 0.92 * top), "|", color="k", markersize=5)
        axes.set_ylim(0, top)
        axes.text(1.01, 1.0, str(len(timeline.missed[i])), transform=axes.transAxes, fontsize=SMALL, va="top")
        axes.set_yticks([0, round(full)])
        axes.set_ylabel(f"{timeline.role} {i}", fontsize=SMALL, rotation=0, ha="right", va="center")


def _fill_steps(axes: Axes, edges: Floats, low: Floats, high: Floats, colour: str, alpha: float = 1.0) -> None:
    # `Axes.stairs` would do, but takes far longer to find the limits.
    ends = np.append(low, low[-1:]), np.append(high, high[-1:])
    axes.fill_between(edges, *ends, step="post", color=colour, alpha=alpha, linewidth=0)


def _draw_map(cells: list[Axes], timeline: PoolTimeline, full: float, burst: Burst, style: Style) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    (axes,) = cells
    shades = LinearSegmentedColormap.from_list("white to the policy's", ["#FFFFFF", style.colour], _SHADES)
    place = (burst.start / PS_PER_S, burst.end / PS_PER_S, len(timeline.held) - 0.5, -0.5)
    axes.imshow(
        timeline.held, cmap=shades, vmin=0, vmax=full, aspect="auto", interpolation="nearest", extent=place
    )
    for i, times in enumerate(timeline.missed):
        axes.plot(times, np.full(len(times), i + 0.25), "|", color="k", markersize=2, markeredgewidth=0.4)
    words = f"{timeline.role}\ninstance\n(darkest:\n{full:.0f} held)"
    axes.set_ylabel(words, fontsize=SMALL, rotation=0, ha="right", va="center")


def _explain(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    signs = {
        "in service: prefill, decode": Patch(color="0.3", linewidth=0),
        "waiting: queued, in transit": Patch(color="0.3", alpha=_LIGHT, linewidth=0),
        "miss, at its arrival, where it lost its time; right: how many": Line2D(
            [], [], color="k", marker="|", linestyle=""
        ),
    }
    figure.legend(
        *(list(signs.values()), list(signs)),
        loc="lower left",
        ncols=3,
        frameon=False,
        bbox_to_anchor=(0.0, 0.0),
    )
