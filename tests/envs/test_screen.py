"""The window: frames in, pixels out, and a sentence where there is no display."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import numpy as np
import pytest

from disaggroute.envs.screen import Screen

NAME = "window_backend_for_tests"


def frame(shade: int) -> np.ndarray:
    image = np.full((40, 60, 3), shade, np.uint8)
    image[:20, :30] = (200, 0, 0)
    return image


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A backend with windows, in place of Agg; whatever stands in MPLBACKEND."""
    specification = importlib.util.spec_from_file_location(NAME, Path(__file__).parent / "window_backend.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, NAME, module)
    plt.switch_backend(f"module://{NAME}")
    yield module
    plt.close("all")
    plt.switch_backend("agg")


def test_frames_are_shown_pixel_by_pixel_in_one_window(windows: ModuleType) -> None:
    screen = Screen("two instances")
    assert not screen.is_open
    for shade in (10, 200):
        screen.show(frame(shade))
    (window,) = windows.shown
    assert window.is_open and screen.is_open and window.title == "two instances"
    assert [shown.shape for shown in window.frames] == [(40, 60, 3)] * 2
    for shown, shade in zip(window.frames, (10, 200), strict=True):
        assert (shown == frame(shade)).all()


def test_a_closed_screen_opens_again_with_the_next_frame(windows: ModuleType) -> None:
    screen = Screen()
    screen.show(frame(1))
    screen.close()
    assert not screen.is_open and not windows.shown[0].is_open
    screen.close()
    screen.show(frame(2))
    assert [window.is_open for window in windows.shown] == [False, True]


def test_a_window_that_a_person_has_closed_stays_closed(windows: ModuleType) -> None:
    screen = Screen()
    screen.show(frame(1))
    plt.close(windows.shown[0].canvas.figure)
    screen.show(frame(2))
    assert not screen.is_open and len(windows.shown) == 1 and len(windows.shown[0].frames) == 1


def test_without_a_display_a_sentence_says_what_to_do() -> None:
    plt.switch_backend("agg")
    open_before = plt.get_fignums()
    with pytest.raises(
        RuntimeError,
        match=r"render_mode 'human' cannot open a window \(matplotlib's backend agg opens none\); set DISPLAY",
    ):
        Screen().show(frame(1))
    assert plt.get_fignums() == open_before


def test_the_error_of_a_backend_becomes_part_of_the_sentence(
    windows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no display name\nand no $DISPLAY")

    monkeypatch.setattr(windows.FigureManagerWithWindow, "__init__", fail)
    with pytest.raises(RuntimeError, match=r"cannot open a window \(no display name and no \$DISPLAY\)"):
        Screen().show(frame(1))
