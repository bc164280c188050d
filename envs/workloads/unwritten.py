"""Requests whose arrivals are drawn, and whose rest is written where a simulator reads it: no columns in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cluster import Cluster
from ..profiles import SloTargets
from ..trace import MAX_TARGET_PS, all_fit
from .sampling import Draw


@dataclass(frozen=True, eq=False)
class Unwritten:
    """Stands for a trace (`envs/trace.py`).

    Attributes:
        arrival: (N,) ps.
        seed: of everything else.
        draw: the laws of everything else.
        longest: most prompt and output tokens of these laws.
        targets: by SLO class.
    """

    arrival: npt.NDArray[np.int64]
    seed: int
    draw: Draw
    longest: tuple[int, int]
    targets: SloTargets

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival)

    def fits(self, cluster: Cluster) -> bool:
        """Whether all that the laws allow fits a cluster and the limits of a trace; if not, the requests may."""
        last = (1 << self.arrival[-1].item().bit_length()) - 1 if len(self) else 0
        within = max(self.targets.ttft) <= MAX_TARGET_PS and max(self.targets.tpot) * self.longest[1] <= MAX_TARGET_PS
        return within and all_fit(cluster, last, *self.longest)

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Writes the requests as a simulator reads them (`simulator/state.py`, TRACE_ROW), all of the first router."""
        self.draw.write(self.seed, self.arrival, self.targets.ttft, self.targets.tpot, rows)
