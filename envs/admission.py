"""An admission: the moment of the decision, and all that a router may know then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .router_constants import RouterConstants


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """One request that awaits its instances.

    Attributes:
        index: request of the trace.
        now: ps.
        router: which router decides.
        prompt: prompt tokens.
        predicted: ô, predicted output tokens.
        slo: index into SLO_CLASSES (0 tight, 1 loose).
        ttft_target: ps.
        tpot_target: ps.
        prefill: (P, 7) int64, columns PREFILL_VIEW of `envs/records.py`.
        decode: (D, 11) int64, columns DECODE_VIEW.
        poll_time: when the polled columns were taken, ps.
        aggregated: the instances are mixed: both views have M rows, and the choice is one index.
        constants: the router's constants per instance, or None.
        address: state block behind the views, for compiled policies; valid until the request is sent.
        owner: keeps that block alive.
    """

    index: int
    now: int
    router: int
    prompt: int
    predicted: int
    slo: int
    ttft_target: int
    tpot_target: int
    prefill: npt.NDArray[np.int64]
    decode: npt.NDArray[np.int64]
    poll_time: int
    aggregated: bool
    constants: RouterConstants | None
    address: int
    owner: Any = None


class Router(Protocol):
    """What `simulate` needs of a policy."""

    def reset(self, seed: int) -> None:
        """Forgets everything; what is random follows from the seed."""

    def route(self, admission: Admission) -> tuple[int, int]:
        """Picks a prefill and a decode instance (aggregated: the same mixed instance twice)."""
