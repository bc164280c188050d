"""Length threshold: long outputs apart from short ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .compiled import episode
from .compiled_policy import CompiledPolicy
from .policy import Parameters
from .registry import register
from .search_space import Dimension


class LengthThresholdParameters(Parameters):
    """Parameters of `length-threshold`."""

    threshold: float | None = Field(
        None, ge=0, description="θ, tokens of predicted output; None: the running median of the predictions."
    )


@register
class LengthThreshold(CompiledPolicy):
    """Long predicted outputs go to the upper half of the decode pool, short ones to the lower half.

    Formula, with D decode instances and h = ⌈D / 2⌉:

        decode  = arg min of in_flight(d) over d in {h … D − 1} if ô > θ, else over d in {0 … h − 1}
        prefill = arg min of queued(p)

    Counts are those of `least-loaded`. If nothing in that half may be assigned, the whole pool is taken. By
    default θ is the router's running median of the ô that it routed before (+∞ at first), kept in constant
    memory by the P² algorithm (Jain and Chlamtac, Communications of the ACM 28(10), 1985). It is the
    heuristic of the study (arXiv 2609.16206), whose threshold is not published. Mixed instances are split
    in halves like decode instances.
    """

    name = "length-threshold"
    accepts = LengthThresholdParameters
    number = episode.LENGTH_THRESHOLD
    parameters: LengthThresholdParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """θ, from all requests long to nearly all short."""
        return (Dimension("threshold", 1.0, 8_192.0, 256.0, "log"),)

    def vector(self) -> npt.NDArray[np.float64]:
        """θ, or NaN for the running median."""
        threshold = self.parameters.threshold
        return np.array([np.nan if threshold is None else threshold])
