"""SLO targets of requests: fixed ones from a profile, or relative to what the request needs alone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from .profiles import SLO_FACTOR, Profile
from .trace import LOOSE, TIGHT

Targets = Literal["fixed", "relative"]

Ints = npt.NDArray[np.int64]


def fixed(slo: npt.NDArray[np.int8], profile: Profile) -> tuple[Ints, Ints]:
    """TTFT and TPOT targets, each (N,) ps, from the profile by SLO class."""
    targets, loose = profile.slo_targets, slo == LOOSE
    return _chosen(loose, targets.ttft), _chosen(loose, targets.tpot)


def _chosen(loose: npt.NDArray[np.bool_], by_class: tuple[int, int]) -> Ints:
    """Of two values, by SLO class, one per request; quicker than `np.where`."""
    column: Ints = np.multiply(loose, by_class[LOOSE] - by_class[TIGHT], dtype=np.int64)
    column += by_class[TIGHT]
    return column


def relative(slo: npt.NDArray[np.int8], profile: Profile, alone_ttft: Ints) -> tuple[Ints, Ints]:
    """TTFT 3 x (tight) or 9 x (loose) the request's own TTFT on the empty cluster; TPOT as the profile.

    Args:
        slo: (N,) index of the SLO class.
        profile: gives the TPOT targets.
        alone_ttft: (N,) ps, from `unloaded`.
    """
    factors = np.array((SLO_FACTOR, SLO_FACTOR * SLO_FACTOR), np.int64)
    return alone_ttft * factors[slo], fixed(slo, profile)[1]
