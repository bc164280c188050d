"""A calibration as a picture: above what was measured and fitted, below how far they are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...envs.picture import BLACK, GREY, PALETTE, SMALL, TEXT, new_figure, set_log_ticks
from .fits import Fits, PoolFit
from .robust_fit import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bools = npt.NDArray[np.bool_]

MARKERS = ("o", "s", "^", "D", "v", "P")


def fit_figure(fits: Fits, title: str) -> Figure:
    """Decode steps, prefills and transfers, each with its residuals; call it inside `drawing()`.

    Args:
        fits: of a calibration.
        title: over all of it.
    """
    pools = [fits.decode, fits.prefill, *([fits.transfer] if fits.transfer else [])]
    figure = new_figure(5.4)
    axes = figure.subplots(2, len(pools), height_ratios=(2, 1), squeeze=False)
    for column, (pool, draw) in enumerate(zip(pools, (_decode, _prefill, _transfer), strict=False)):
        above, below = axes[0][column], axes[1][column]
        draw(above, below, pool, fits)
        for each in (above, below):
            each.grid(True)
            set_log_ticks(each.xaxis, _short)
        below.axhline(0, color=GREY, linewidth=1)
        limit = max(1.0, 115 * float(np.abs(pool.fit.residuals[pool.fit.kept]).max()))
        below.set_ylim(-limit, limit)
    axes[1][0].set_ylabel("residual, %")
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT)
    figure.supxlabel(
        "lines: fitted; crosses: measurements that were set aside (those beyond the lower panels are not shown there)",
        fontsize=SMALL,
        color=GREY,
    )
    return figure


def _short(value: float) -> str:
    """A count in few characters: the panels are narrow."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _decode(above: Axes, below: Axes, pool: PoolFit, fits: Fits) -> None:
    prompts = sorted({row.prompt for row in pool.rows})
    sequences = np.array([row.sequences for row in pool.rows])
    for place, prompt in enumerate(prompts):
        colour, marker = PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]
        mine = np.array([row.prompt == prompt for row in pool.rows])
        _points(above, below, pool, sequences, mine, colour, marker, label=f"{prompt:,}")
        some = [row for row in pool.rows if row.prompt == prompt]
        context = float(np.median([row.context / row.sequences for row in some]))
        x = np.geomspace(min(row.sequences for row in some), max(row.sequences for row in some), 50)
        above.plot(x, 1e3 * pool.fit.at(np.stack([np.ones_like(x), x, x * context], 1)), color=colour, linewidth=1.2)
    for each in (above, below):
        each.set_xscale("log")
    above.set_title("decode step", loc="left")
    above.set_ylabel("ms")
    above.legend(title="prompt, tokens", frameon=False, fontsize=SMALL, title_fontsize=SMALL)
    below.set_xlabel("requests at a time")


def _prefill(above: Axes, below: Axes, pool: PoolFit, fits: Fits) -> None:
    tokens = np.array([row.prompt for row in pool.rows], np.float64)
    _engines(above, below, pool, tokens)
    x = np.geomspace(tokens.min(), tokens.max(), 200)
    columns = np.stack([np.ceil(x / fits.sizes.budget), x, x**2], 1)
    above.plot(x, 1e3 * pool.fit.at(columns), color=BLACK, linewidth=1.2)
    for each in (above, below):
        each.set_xscale("log")
    above.set_yscale("log")
    set_log_ticks(above.yaxis, lambda value: f"{value:,.0f}")
    above.set_title("prefill of one prompt", loc="left")
    below.set_xlabel("prompt, tokens")


def _transfer(above: Axes, below: Axes, pool: PoolFit, fits: Fits) -> None:
    tokens = np.array([row.prompt for row in pool.rows], np.float64)
    _engines(above, below, pool, tokens)
    x = np.geomspace(tokens.min(), tokens.max(), 200)
    blocks = np.ceil(x / fits.sizes.block_size)
    above.plot(x, 1e3 * pool.fit.at(np.stack([np.ones_like(x), blocks], 1)), color=BLACK, linewidth=1.2)
    for each in (above, below):
        each.set_xscale("log")
    above.set_title("transfer", loc="left")
    below.set_xlabel("prompt, tokens")
    if not fits.own_transfers:
        below.set_title("of the whole decode leg", loc="left", fontsize=SMALL, color=GREY)


def _engines(above: Axes, below: Axes, pool: PoolFit, x: Floats) -> None:
    """Points by engine."""
    names = sorted({row.engine for row in pool.rows})
    for place, name in enumerate(names):
        mine = np.array([row.engine == name for row in pool.rows])
        colour, marker = PALETTE[place % len(PALETTE)], MARKERS[place % len(MARKERS)]
        _points(above, below, pool, x, mine, colour, marker, label=name)
    if 1 < len(names) <= 6:
        above.legend(frameon=False, fontsize=SMALL)


def _points(
    above: Axes, below: Axes, pool: PoolFit, x: Floats, mine: Bools, colour: str, marker: str, *, label: str
) -> None:
    milliseconds, residuals = 1e3 * pool.seconds, 100 * pool.fit.residuals
    for chosen, look, name in ((mine & pool.fit.kept, marker, label), (mine & ~pool.fit.kept, "x", None)):
        for axes, y in ((above, milliseconds), (below, residuals)):
            axes.plot(x[chosen], y[chosen], look, color=colour, markersize=4, alpha=0.7, label=name, linestyle="none")


