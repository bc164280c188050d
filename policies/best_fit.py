"""Best fit: packing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .compiled import episode
from .compiled.best_fit import PARAMETERS
from .compiled_policy import CompiledPolicy
from .policy import HIGHEST, Parameters
from .registry import register
from .search_space import Dimension


class BestFitParameters(Parameters):
    """Parameters of `best-fit`."""

    ttft_slack: float = Field(0.25, ge=0, le=HIGHEST, description="Share of the TTFT target that may be projected.")
    tpot_slack: float = Field(0.5, ge=0, le=HIGHEST, description="Share of the TPOT target that may be projected.")
    limit: float = Field(0.4, ge=0, le=HIGHEST, description="Share of the KV capacity that may be committed.")
    give_up: float | None = Field(
        None,
        ge=0,
        le=HIGHEST,
        description="Share of the TTFT target beyond which a request goes to the longest queue; none: never.",
    )


@register
class BestFit(CompiledPolicy):
    """The fullest instance on which the request still fits: bin packing, which keeps the others free.

    Formula of prefill instance p; ties go to the lowest index:

        ttft(p) = queued_work(p) + own_prefill(p)                            as in `least-ttft`
        pick    = arg max of ttft(p) among ttft(p) ≤ ttft_slack·TTFT target
                  else arg min of ttft(p), or, if even that is above give_up·TTFT target, arg max of ttft(p)

    and of decode instance d:

        pressure(d) = (Σ (p + ô) over the ledger's requests on d + p + ô) / KV capacity of d
        pick        = arg max of pressure(d) among pressure(d) ≤ limit and projected_step(d) ≤ tpot_slack·TPOT target
                      else arg min of pressure(d)

    with the projected_step of `min-tpot`. A mixed instance has to fit in all three ways; the one of highest pressure
    wins, and if none fits the rule of prefill decides.

    Source: the best-fit rule of bin packing, Johnson, Demers, Ullman, Garey and Graham, SIAM Journal on Computing 3(4),
    1974. Slacks of 0 leave the least projected TTFT and the least pressure. A `give_up` sends requests that miss their
    target anyway where they delay the fewest others.
    """

    name = "best-fit"
    accepts = BestFitParameters
    number = episode.BEST_FIT
    needs_constants = True
    parameters: BestFitParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """All four."""
        start = BestFitParameters()
        return (
            Dimension("ttft_slack", 0.0, 2.0, start.ttft_slack),
            Dimension("tpot_slack", 0.0, 4.0, start.tpot_slack),
            Dimension("limit", 0.01, 10.0, start.limit, "log"),
            Dimension("give_up", 0.25, 100.0, 100.0, "log"),
        )

    def vector(self) -> npt.NDArray[np.float64]:
        """The parameters in the order of `compiled.best_fit.PARAMETERS`."""
        p = self.parameters
        values = p.model_dump() | {"give_up": np.inf if p.give_up is None else p.give_up}
        return np.array([values[name] for name in PARAMETERS])
