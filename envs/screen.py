"""A window for the frames of an environment, by whatever interactive backend matplotlib finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lettering import Pixels

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


class Screen:
    """Shows frames in a window, which opens with the first one. Once a person has closed it, nothing more is shown.

    Args:
        title: of the window.
    """

    def __init__(self, title: str = "disaggroute") -> None:
        self.title = title
        self._figure: Figure | None = None
        self._image: AxesImage | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a window."""
        import matplotlib.pyplot as plt

        return self._figure is not None and plt.fignum_exists(self._figure.number)

    def show(self, frame: Pixels) -> None:
        """Shows a frame, (H, W, 3).

        Raises:
            RuntimeError: there is no display, or matplotlib has no backend for it.
        """
        if self._figure is None:
            self._open(frame)
        elif self._image is not None and self.is_open:
            self._image.set_data(frame)
            self._figure.canvas.draw_idle()
        if self._figure is not None and self.is_open:
            self._figure.canvas.flush_events()

    def close(self) -> None:
        """Closes the window, if it is open; the next frame opens a new one."""
        import matplotlib.pyplot as plt

        if self._figure is not None:
            plt.close(self._figure)
        self._figure = self._image = None

    def _open(self, frame: Pixels) -> None:
        import matplotlib
        import matplotlib.pyplot as plt

        height, width = frame.shape[:2]
        try:
            figure = plt.figure(self.title, figsize=(width / 100, height / 100), dpi=100)
        except Exception as error:  # each backend has errors of its own
            raise RuntimeError(_no_window(str(error))) from error
        if figure.canvas.required_interactive_framework is None:
            plt.close(figure)
            raise RuntimeError(_no_window(f"matplotlib's backend {matplotlib.get_backend()} opens none"))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        self._figure, self._image = figure, axes.imshow(frame)
        plt.show(block=False)


def _no_window(why: str) -> str:
    return (
        f"render_mode 'human' cannot open a window ({' '.join(why.split())}); set DISPLAY or MPLBACKEND, "
        "or use render_mode 'rgb_array' or 'ansi'"
    )
