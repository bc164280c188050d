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
    ttft, tpot = (np.array(by_class, np.int64) for by_class in (targets.ttft, targets.tpot))
    return np.where(loose, ttft[LOOSE], ttft[TIGHT]), np.where(loose, tpot[LOOSE], tpot[TIGHT])


def relative(slo: npt.NDArray[np.int8], profile: Profile, alone_ttft: Ints) -> tuple[Ints, Ints]:
    """TTFT 3 x (tight) or 9 x (loose) the request's own TTFT on the empty cluster; TPOT as the profile.

    Args:
        slo: (N,) index of the SLO class.
        profile: gives the TPOT targets.
        alone_ttft: (N,) ps, from `unloaded`.
    """
    factors = np.array((SLO_FACTOR, SLO_FACTOR * SLO_FACTOR), np.int64)
    return alone_ttft * factors[slo], fixed(slo, profile)[1]
