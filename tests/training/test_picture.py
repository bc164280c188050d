"""Pictures: the same bytes for the same data, whatever the user's settings are."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from disaggroute.training.picture import (
    drawing,
    keep_shares,
    legend_height,
    new_figure,
    png_bytes,
    set_legend,
    set_log_ticks,
)
from disaggroute.training.policy_style import PALETTE, policy_styles

LABELS = ("round-robin", "marginal-cost($w_q$=0.1)", "政策")


def figure() -> Figure:
    styles = policy_styles(LABELS)
    with drawing():
        made = new_figure(3.0)
        axes = made.subplots()
        for k, style in enumerate(styles.values()):
            axes.plot([1, 2, 3], [k, k + 1, k], color=style.colour, linestyle=style.line, marker=style.marker)
        set_legend(made, "three policies " * 20, styles)
    return made


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_the_same_figure_gives_the_same_bytes_and_holds_no_time_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    one = png_bytes(figure())
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert png_bytes(figure()) == one
    assert set(Image.open(io.BytesIO(one)).info) == {"Description", "dpi"}


def test_settings_of_the_user_change_nothing_and_stay_as_they_were() -> None:
    plain = png_bytes(figure())
    with matplotlib.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "figure.facecolor": "black"}):
        assert png_bytes(figure()) == plain
        assert matplotlib.rcParams["font.size"] == 30.0


def test_colours_of_policies_are_in_the_picture_exactly() -> None:
    seen = {tuple(colour) for colour in pixels(png_bytes(figure())).reshape(-1, 3).tolist()}
    for style in policy_styles(LABELS).values():
        assert tuple(int(style.colour[k : k + 2], 16) for k in (1, 3, 5)) in seen


def test_a_picture_of_many_hues_is_kept_in_full_colour() -> None:
    with drawing():
        made = new_figure(3.0, layout=None)
        axes = made.add_axes((0, 0, 1, 1))
        axes.imshow(np.random.default_rng(0).random((60, 60, 3)), interpolation="nearest")
    assert Image.open(io.BytesIO(png_bytes(made))).mode == "RGB"
    assert Image.open(io.BytesIO(png_bytes(figure()))).mode == "P"


def test_a_longer_legend_asks_for_more_height() -> None:
    few, many = policy_styles(["a", "b"]), policy_styles([f"marginal-cost(w_q={k},w_b=2)" for k in range(12)])
    assert legend_height(few) == 0
    assert legend_height(many) > 0.5


def test_shares_are_shown_between_nought_and_one() -> None:
    with drawing():
        axes = new_figure(2.0).subplots()
        axes.plot([1.0, 1.0], [0.3, 0.5])
        keep_shares(axes, along_x=True)
        keep_shares(axes, along_x=False)
    assert axes.get_xlim()[1] == 1.02
    assert 0 < axes.get_ylim()[0] < 0.3 and 0.5 < axes.get_ylim()[1] < 1


@pytest.mark.parametrize(
    ("high", "words"), [(1.0, ["0.1", "0.2", "0.5", "1"]), (1000.0, ["0.1", "1", "10", "100", "1000"])]
)
def test_logarithmic_ticks_read_as_plain_numbers(high: float, words: list[str]) -> None:
    with drawing():
        axes = new_figure(2.0).subplots()
        axes.set_xscale("log")
        axes.set_xlim(0.09, high * 1.1)
        set_log_ticks(axes.xaxis, "{:g}".format)
        axes.figure.canvas.draw()
        ticks = [t.get_text() for t in axes.get_xticklabels() if 0.09 <= t.get_position()[0] <= high * 1.1]
    assert ticks == words


def test_the_palette_is_that_of_okabe_and_ito_without_yellow() -> None:
    assert len(set(PALETTE)) == 7 and "#F0E442" not in PALETTE
