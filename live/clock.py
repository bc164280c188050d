"""The router's clock: picoseconds of the engines' time since it started, as records and ledgers count them."""

from __future__ import annotations

import time

from ..envs.cluster import PS_PER_S


class Clock:
    """Time since it was made.

    Args:
        time_scale: wall seconds of one second of the engines: 1, unless they are emulated slower or faster than life.

    Attributes:
        started_at: seconds since 1970 at its time 0.
        started_ns: of the machine's monotonic clock at its time 0, ns.
    """

    def __init__(self, time_scale: float = 1.0) -> None:
        self.time_scale = time_scale
        self.started_at = time.time()
        self.started_ns = time.monotonic_ns()

    def now(self) -> int:
        """Ps."""
        wall = (time.monotonic_ns() - self.started_ns) * 1_000
        return wall if self.time_scale == 1.0 else round(wall / self.time_scale)

    def patience(self, seconds: float) -> float:
        """Wall time that an engine is given for what may take it some of its own seconds, s.

        Engines that are emulated slower than life take that much longer; with faster ones, network and machine do not
        become faster, so that the time stays the same.
        """
        return seconds * max(self.time_scale, 1.0)

    def seconds(self) -> float:
        """S."""
        return self.now() / PS_PER_S
