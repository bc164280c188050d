"""The measurement window: which requests of a trace count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .cluster import PS_PER_S
from .trace import Trace

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """Measurement window: requests that arrive in [start, end) count; ps."""

    start: int
    end: int

    @classmethod
    def after_warmup(cls, warmup_s: float, duration_s: float) -> Window:
        """The window of `duration_s` seconds that follows a warm-up of `warmup_s` seconds."""
        start = round(warmup_s * PS_PER_S)
        return cls(start, start + round(duration_s * PS_PER_S))

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start) / PS_PER_S

    def holds(self, trace: Trace) -> Bools:
        """(N,) which requests count."""
        return (trace.arrival >= self.start) & (trace.arrival < self.end)
