"""Text and image of a cluster: what stands where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs import rendering
from disaggroute.envs.cluster_view import ClusterView, InstanceView, PendingView, view_of
from disaggroute.envs.lettering import text_width, write_text
from disaggroute.envs.rendering import ansi, rgb_array

from ..policies import scenes


def instance(role: str = "decode", index: int = 0, **changes: Any) -> InstanceView:
    empty = InstanceView(
        role=role,
        index=index,
        state="up",
        kv_used=0,
        kv_capacity=100,
        running=0,
        running_limit=256,
        queued=0,
        held=0,
        in_transit=0,
        arrived=0,
        committed=0,
    )
    return replace(empty, **changes)


def view(*instances: InstanceView, **changes: Any) -> ClusterView:
    return ClusterView(**{"time": 0.0, "instances": instances, "in_flight": 0, "ended": 0} | changes)


BUSY = view(
    instance("prefill", 0, kv_used=7, running=2, queued=3, held=1, in_transit=2, committed=5),
    instance("prefill", 1, state="draining", kv_used=100),
    instance("decode", 0, kv_used=40, running=61, queued=2, in_transit=1, arrived=2, committed=70),
    instance("decode", 1, state="down", committed=9),
    time=12.3456,
    in_flight=85,
    ended=1204,
    pending=PendingView(1289, "tight", 512, 128, 0.175, 0.0397),
    action=(1, 0),
    reward=-12.0,
    goodput=0.9123,
)


def test_the_text_of_a_busy_cluster() -> None:
    assert ansi(BUSY) == (
        "t 12.346 s   85 in flight   1,204 ended   reward -12.00   goodput 0.912\n"
        "request 1,289 (tight): prompt 512, expected output 128; TTFT 175 ms, TPOT 39.7 ms\n"
        "\n"
        "               KV blocks in use         running            queue   transit  ledger  state\n"
        "  prefill/0    [#...............]   7 % [#.........] 2     3       2+1      5       up\n"
        "> prefill/1    [################] 100 % [..........] 0     0       0        0       draining\n"
        "\n"
        "               KV blocks in use         running            queue   transit  ledger  state\n"
        "> decode/0     [######..........]  40 % [##########> 61    2       1+2      70      up\n"
        "  decode/1     [................]   0 % [..........] 0     0       0        9       down\n"
    )


def test_without_a_request_reward_or_goodput_the_text_is_shorter() -> None:
    assert ansi(view(instance("mixed"))).splitlines()[:2] == [
        "t 0.000 s   0 in flight   0 ended",
        "no request awaits a decision",
    ]


counts = st.integers(0, 10**6)
instances = st.builds(
    instance,
    st.sampled_from(["prefill", "decode"]),
    st.integers(0, 4095),
    state=st.sampled_from(["up", "draining", "down"]),
    kv_used=st.integers(0, 100),
    running=st.integers(0, 131_072),
    queued=counts,
    held=st.integers(0, 1000),
    in_transit=st.integers(0, 1000),
    arrived=st.integers(0, 1000),
    committed=counts,
)


@given(st.lists(instances, min_size=1, max_size=80), st.floats(0, 1e7), counts, st.floats(-1e6, 0))
def test_every_text_fits_100_columns_of_ascii(
    shown: list[InstanceView], time: float, ended: int, reward: float
) -> None:
    text = ansi(view(*shown, time=time, in_flight=ended, ended=ended, reward=reward, goodput=1.0, pending=BUSY.pending))
    assert text.isascii() and max(map(len, text.splitlines())) <= 100


def test_of_a_wide_pool_64_instances_are_shown_and_the_others_counted() -> None:
    wide = view(*(instance("mixed", k) for k in range(70)))
    assert ansi(wide).count("mixed/") == 64 and "and 6 more" in ansi(wide)
    full = view(*(instance("mixed", k) for k in range(64)))
    assert 16 <= rgb_array(wide).shape[0] - rgb_array(full).shape[0] <= 32  # a line of text, in steps of 16


# --- the image ---------------------------------------------------------------------------------------------------


def pixels(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Where an image has exactly this colour."""
    mask: np.ndarray = (image == colour).all(axis=2)
    return mask


def bar(image: np.ndarray, colour: tuple[int, int, int], box: str) -> int:
    """Pixels of this colour inside a box, in the row that has most of them."""
    x, width = rendering._BOXES[box]
    return int(pixels(image[rendering._HEAD :, x : x + width], colour).sum(axis=1).max())


@pytest.mark.parametrize("topology", ["1P1D", "2P4D", "16P48D", "4M"])
def test_the_size_depends_on_the_cluster_alone_and_suits_video_encoders(topology: str) -> None:
    simulated = scenes.simulator(scenes.cluster(topology), scenes.trace(9))
    empty = rgb_array(view_of(simulated))
    assert simulated.run()
    image = rgb_array(view_of(simulated, action=(0, 0), reward=-3.0, goodput=0.5))
    assert image.shape == empty.shape and image.dtype == np.uint8
    assert [side % 16 for side in image.shape[:2]] == [0, 0] and image.shape[2] == 3
    assert (image != empty).any()


def test_bars_are_as_long_as_what_they_show() -> None:
    image = rgb_array(
        view(
            instance("prefill"),
            instance("decode", kv_used=25, running=10, queued=6, in_transit=4, arrived=2),
        )
    )
    widths = {name: width for name, (_, width) in rendering._BOXES.items()}
    assert bar(image, rendering.GREEN, "KV") == widths["KV"] // 4
    assert bar(image, rendering.VERMILION, "running") == widths["running"] // 5
    assert bar(image, rendering.ORANGE, "queue") == widths["queue"] // 5
    moving, both = (round(widths["transit"] * count / 16) for count in (4, 6))
    assert bar(image, rendering.SKY, "transit") == moving
    assert bar(image, rendering.BLUE, "transit") == both - moving
    assert bar(image, rendering.BLUE, "running") == 0  # nothing runs on the prefill instance


def test_the_least_share_can_be_seen() -> None:
    assert bar(rgb_array(view(instance(kv_used=1, kv_capacity=10**6))), rendering.GREEN, "KV") == 1


def test_a_bar_beyond_its_box_ends_in_an_arrow() -> None:
    images = [rgb_array(view(instance(queued=count))) for count in (30, 31)]
    x, width = rendering._BOXES["queue"]
    ink = [int(pixels(image[:, x : x + width], rendering.INK)[rendering._HEAD :].sum()) for image in images]
    assert ink[0] == 0 < ink[1]


def test_the_last_decision_is_marked_and_other_rows_are_not() -> None:
    marked = pixels(rgb_array(BUSY), rendering.PURPLE)
    rows = np.flatnonzero(marked.any(axis=1))
    assert len(rows) == 2 * 36 and marked[:, :6].sum() == marked.sum() == 2 * 36 * 6
    assert not pixels(rgb_array(replace(BUSY, action=None)), rendering.PURPLE).any()


def test_a_dead_instance_has_no_bars() -> None:
    up, down = (rgb_array(view(instance(state=state, kv_used=50))) for state in ("up", "down"))
    assert bar(up, rendering.GREEN, "KV") > 0 == bar(down, rendering.GREEN, "KV")
    assert bar(up, rendering.FAINT, "queue") > 0 == bar(down, rendering.FAINT, "queue")


def test_the_same_view_gives_the_same_pixels_whatever_was_drawn_before() -> None:
    first = rgb_array(BUSY)
    rgb_array(replace(BUSY, action=(0, 1), goodput=0.1))
    first_again = rgb_array(BUSY)
    assert (first == first_again).all()
    first[:] = 0  # a frame belongs to who asked for it
    assert (rgb_array(BUSY) == first_again).all()


# --- letters -----------------------------------------------------------------------------------------------------


def test_text_is_where_it_was_asked_for() -> None:
    image = np.full((40, 200, 3), 255, np.uint8)
    write_text(image, 20, 10, "kv", 18, (0, 0, 200))
    ys, xs = np.nonzero((image < 255).any(axis=2))
    assert 10 <= ys.min() <= ys.max() < 28 and 20 <= xs.min() <= xs.max() < 20 + text_width("kv", 18)
    assert (image[..., 0] == image[..., 1]).all() and image[..., 2].min() >= 200


def test_text_aligned_to_the_right_ends_there_and_is_cut_off_at_the_edges() -> None:
    left, right = (np.full((20, 60, 3), 255, np.uint8) for _ in range(2))
    write_text(left, 60 - text_width("42", 15), 0, "42", 15, (0, 0, 0))
    write_text(right, 60, 0, "42", 15, (0, 0, 0), align="right")
    assert (left == right).all() and (left < 255).any()
    write_text(right, 10, 10, "a long text that does not fit", 18, (0, 0, 0))
    write_text(right, 5, 0, "12345", 15, (0, 0, 0), align="right")


def test_letters_differ_and_what_is_no_ascii_becomes_a_question_mark() -> None:
    def drawn(text: str) -> bytes:
        image = np.full((18, 20, 3), 255, np.uint8)
        write_text(image, 0, 0, text, 18, (0, 0, 0))
        return image.tobytes()

    letters = [chr(code) for code in range(33, 127)]
    assert len({drawn(letter) for letter in letters}) == len(letters)
    assert drawn("é") == drawn("?")
