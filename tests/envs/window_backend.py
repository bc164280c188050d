"""A matplotlib backend whose windows exist only in this list: what a display would show."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

shown: list[FigureManagerWithWindow] = []


class FigureManagerWithWindow(FigureManagerBase):
    def __init__(self, canvas: Any, num: int) -> None:
        super().__init__(canvas, num)
        self.frames: list[np.ndarray] = []
        self.is_open = False
        self.title = ""

    def show(self) -> None:
        self.is_open = True
        shown.append(self)

    def set_window_title(self, title: str) -> None:
        self.title = title

    def destroy(self, *_: Any) -> None:
        self.is_open = False


class FigureCanvas(FigureCanvasAgg):
    required_interactive_framework = "headless"
    manager_class = FigureManagerWithWindow

    def flush_events(self) -> None:
        self.draw()
        self.manager.frames.append(np.asarray(self.buffer_rgba())[:, :, :3].copy())


FigureManager = FigureManagerWithWindow
