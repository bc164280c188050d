"""The figure of delays: how many requests wait longer than a time, against the targets of their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...envs.cluster import PS_PER_S
from ...envs.records import FINISHED
from ...envs.trace import SLO_CLASSES
from ..picture import GREY, SMALL, legend_height, new_figure, set_legend, set_log_ticks
from ..policy_style import Style
from ..stored_records import StoredRecords
from .material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

POINTS = 300
"""Most points of a curve."""


@dataclass(frozen=True, eq=False)
class Delays:
    """Delays of the measured requests of one SLO class, and what each was allowed.

    Attributes:
        values: (N,) s; infinite where the request never got there.
        targets: (N,) s.
    """

    values: Floats
    targets: Floats

    @property
    def multiples(self) -> Floats:
        """(N,) value ÷ target; infinite where the target is 0."""
        multiples = np.full(len(self.values), np.inf)
        np.divide(self.values, self.targets, out=multiples, where=self.targets > 0)
        return multiples


def ttft_delays(run: StoredRecords, slo: int) -> Delays:
    """First token − arrival of the measured requests of a class."""
    which = run.measured & (run.trace.slo == slo)
    rows = run.records[which]
    reached = rows["first_token"] >= 0
    values = np.where(reached, (rows["first_token"] - rows["arrival"]) / PS_PER_S, np.inf)
    return Delays(values, run.trace.ttft_target[which] / PS_PER_S)


def tpot_delays(run: StoredRecords, slo: int) -> Delays:
    """(Last − first token) / (output tokens − 1) of the measured requests of a class with several tokens."""
    which = run.measured & (run.trace.slo == slo) & (run.trace.output > 1)
    rows = run.records[which]
    span = (rows["last_token"] - rows["first_token"]) / PS_PER_S
    values = np.where(rows["status"] == FINISHED, span / (run.trace.output[which] - 1), np.inf)
    return Delays(values, run.trace.tpot_target[which] / PS_PER_S)


def later_than(values: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """Share of values beyond each time: the complementary distribution function, at its own steps.

    Args:
        values: (N,), infinite ones count as beyond every time.
        points: at most so many are kept, dense where few requests are left.

    Returns:
        Times, rising, and the share strictly beyond each; the last share is that of the infinite values.
    """
    n = len(values)
    times = np.sort(values)
    finite = int(np.isfinite(times).sum())
    beyond = n - np.arange(1, finite + 1)
    if finite > points:
        left = np.geomspace(max(1, n - finite), n, points)
        kept = np.unique(np.clip(n - np.rint(left).astype(np.int64), 0, finite - 1))
        kept = np.union1d(kept, [0, finite - 1])
        return times[kept], beyond[kept] / n
    return times[:finite], beyond / max(n, 1)


def target_words(runs: Mapping[str, StoredRecords]) -> str:
    """The targets of each SLO class, to follow their kind; empty without records."""
    words = []
    for run in list(runs.values())[:1]:
        for k, name in enumerate(SLO_CLASSES):
            which = run.measured & (run.trace.slo == k)
            if which.any():
                ttft = _span(run.trace.ttft_target[which] / PS_PER_S, "s")
                tpot = _span(run.trace.tpot_target[which] / PS_PER_S * 1e3, "ms")
                words.append(f"; {name}: TTFT {ttft}, TPOT {tpot}")
    return "".join(words)


def _span(targets: Floats, unit: str) -> str:
    low, high = targets.min(), targets.max()
    return f"{low:.4g} {unit}" if low == high else f"{low:.4g} to {high:.4g} {unit}"


def draw_delays(material: Material) -> Figure:
    """TTFT and TPOT of the first seed: a row per SLO class, a column each, both axes logarithmic.

    Where targets differ from request to request, delays are drawn as multiples of them.
    """
    columns = [_panels(material, "TTFT", ttft_delays), _panels(material, "TPOT", tpot_delays)]
    rows = max(1, *map(len, columns))
    figure = new_figure(1.3 + 2.2 * rows + legend_height(material.recorded))
    grid = figure.subplots(rows, 2, sharey=True, sharex="col", squeeze=False)
    for column, panels in enumerate(columns):
        ends = _ends(panels)
        for axes, panel in zip(grid[:, column], panels, strict=False):
            axes.set(xscale="log", yscale="log", xlim=ends)
            _draw_panel(axes, panel, material.styles)
            if panel.target > 0:
                _draw_target(axes, panel)
        for axes in grid[len(panels) :, column]:
            axes.set_axis_off()
        set_log_ticks(grid[-1, column].xaxis, "{:g}".format)
    for axes in grid[:, 0]:
        axes.set_ylabel("share of requests later")
    set_log_ticks(grid[0, 0].yaxis, lambda share: f"{100 * share:g} %")
    title = material.results.description.title(material.results.seeds[:1])
    set_legend(figure, f"Delays: {title}", material.recorded)
    return figure


@dataclass(frozen=True, eq=False)
class _Panel:
    """Delays of one SLO class by policy, s or (relative) as multiples of the targets, and the target in the same."""

    what: str
    slo: str
    relative: bool
    target: float
    values: dict[str, Floats]


def _panels(material: Material, what: str, of: Callable[[StoredRecords, int], Delays]) -> list[_Panel]:
    """One panel per SLO class that has requests."""
    known = [{label: of(run, k) for label, run in material.records.items()} for k in range(len(SLO_CLASSES))]
    relative = any((d.targets != d.targets[:1]).any() for delays in known for d in delays.values())
    panels = []
    for slo, delays in zip(SLO_CLASSES, known, strict=True):
        some = next(iter(delays.values()))
        if len(some.values):
            values = {label: d.multiples if relative else d.values for label, d in delays.items()}
            panels.append(_Panel(what, slo, relative, 1.0 if relative else float(some.targets[0]), values))
    return panels


def _ends(panels: list[_Panel]) -> tuple[float, float]:
    """Limits of the time axis that the panels of a column share, with some room beyond their targets and delays."""
    parts = [values[np.isfinite(values)] for panel in panels for values in panel.values.values()]
    known = np.concatenate([*parts, [panel.target for panel in panels]])
    known = known[known > 0]
    return (float(known.min()) / 1.2, float(known.max()) * 1.25) if len(known) else (0.1, 1.0)


def _draw_panel(axes: Axes, panel: _Panel, styles: dict[str, Style]) -> None:
    axes.grid(True)
    axes.set_title(f"{panel.what}, class {panel.slo}", loc="left")
    unit = "s per token after the first" if panel.what == "TPOT" else "s"
    axes.set_xlabel(f"{panel.what} ÷ the request's target" if panel.relative else f"{panel.what}, {unit}")
    finite = [values[np.isfinite(values)].max(initial=panel.target) for values in panel.values.values()]
    for label, values in panel.values.items():
        style = styles[label]
        times, share = later_than(values)
        # From all requests down to the last; failed ones stay later than any time.
        steps = np.concatenate([[1.0], np.where(share > 0, share, np.nan), share[-1:]])
        times = np.concatenate([times[:1], times, [max(finite)] * min(1, len(times))])
        axes.plot(times, steps[: len(times)], color=style.colour, linestyle=style.line, drawstyle="steps-post")
        missed = float((values > panel.target).mean())
        if missed > 0:
            axes.plot([panel.target], [missed], style.marker, color=style.colour, markersize=6, mec="white")
    axes.set_ylim(0.8 / max(map(len, panel.values.values())), 2.5)  # Room for the target's name.


def _draw_target(axes: Axes, panel: _Panel) -> None:
    axes.axvline(panel.target, color=GREY, linestyle=(0, (1, 1)), linewidth=1.2, zorder=1)
    low, high = np.log(axes.get_xlim())
    left = (np.log(panel.target) - low) / (high - low) > 0.7
    axes.annotate(
        "target" if panel.relative else f"target {panel.target:.3g} s",
        (panel.target, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-3 if left else 3, -2),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=SMALL,
        color=GREY,
    )
