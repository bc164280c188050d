"""Draws the pictures of docs/workloads.md: `python docs/img/workloads.py [FOLDER]`, from the root of a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from disaggroute.envs import workloads

FAMILIES = ("chat", "document", "reasoning")
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "0.55"
RATE, SEED, SECONDS = 13.97, 20_000, 300
CLOSE = (83.0, 86.0)
"""Seconds of the trace, around the start of a burst, that are shown at three rates."""


def main(folder: Path) -> None:
    """Draws both pictures into a folder."""
    save(lengths(), folder / "workload-lengths.png")
    save(arrivals(), folder / "workload-arrivals.png")


def lengths() -> Figure:
    """The laws of prompt and output length of each family: share of requests per doubling of the length."""
    figure = Figure(figsize=(9.4, 2.9), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(FAMILIES), sharex=True, sharey=True)
    for axes, name in zip(panels, FAMILIES, strict=True):
        family = workloads.make(name).families[name]
        for law, label, colour in ((family.prompt, "prompt", BLUE), (family.output, "output", VERMILION)):
            edges = 2.0 ** np.arange(0, 13.01, 0.25)
            tokens, shares = np.arange(law.min, law.max + 1), law.probabilities()
            # A token n stands for the lengths from n − ½ to n + ½, so that narrow bins at the left hold no gaps.
            reached = np.interp(edges, [law.min - 0.5, *(tokens + 0.5)], [0.0, *np.cumsum(shares)])
            axes.stairs(np.diff(reached) / 0.25, edges, color=colour, fill=True, alpha=0.25)
            axes.stairs(np.diff(reached) / 0.25, edges, color=colour, label=label)
            median = int(tokens[np.searchsorted(np.cumsum(shares), 0.5)])
            axes.axvline(median, color=colour, linestyle=":", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 8, 64, 512, 4096], ["1", "8", "64", "512", "4,096"])
        axes.set(title=name, xlabel="tokens")
        tidy(axes)
    panels[0].set_ylabel("share per doubling")
    panels[-1].legend(frameon=False, loc="upper left")
    return figure


def arrivals() -> Figure:
    """A trace of mixed-bursty-a40, and the same seed at three rates."""
    figure = Figure(figsize=(9.4, 4.6), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1.5, 1))
    workload = workloads.make("mixed-bursty-a40")
    trace = workload.generate(RATE, SECONDS, SEED)
    seconds = trace.arrival / 1e12
    base = np.zeros(SECONDS)
    for index, (name, colour) in enumerate(zip(trace.families, (BLUE, VERMILION, "#009E73"), strict=True)):
        counts = np.histogram(seconds[trace.family == index], np.arange(SECONDS + 1))[0]
        above.stairs(base + counts, np.arange(SECONDS + 1), baseline=base, fill=True, color=colour, label=name)
        base = base + counts
    above.axhline(RATE, color="0.2", linewidth=1, linestyle="--")
    above.annotate(f"mean rate, {RATE} per s", (185, RATE), (0, 4), textcoords="offset points", ha="center")
    above.set(xlim=(0, SECONDS), ylim=(0, 68), ylabel="requests per second")
    above.legend(frameon=False, ncols=3, loc="upper right")
    for place, factor in enumerate((1.0, 1.25, 2.0)):
        times = workload.generate(factor * RATE, SECONDS, SEED).arrival / 1e12
        tenth = np.arange(len(times)) % 10 == 0
        below.plot(times[~tenth], np.full((~tenth).sum(), place), "|", color="0.45", markersize=14)
        below.plot(times[tenth], np.full(tenth.sum(), place), "|", color=VERMILION, markersize=22, markeredgewidth=2)
    below.set(xlim=CLOSE, ylim=(2.6, -0.6), xlabel="seconds")
    below.set_yticks(range(3), [f"{RATE} per s", "× 1.25", "× 2"])
    for axes in (above, below):
        tidy(axes)
    below.spines["left"].set_visible(False)
    return figure


def tidy(axes: Any) -> None:
    """Leaves out what carries nothing."""
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Writes a picture without a date or a version in it."""
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
