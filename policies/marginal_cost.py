"""Marginal cost: the study's router."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .compiled import episode
from .compiled.marginal_cost import PARAMETERS
from .compiled_policy import CompiledPolicy
from .policy import HIGHEST, Parameters
from .registry import register
from .search_space import Dimension

NAIVE_TAU_SCALE = 1 / 7.4
"""The study's uncalibrated τ over its measured one."""


class MarginalCostParameters(Parameters):
    """Parameters of `marginal-cost`."""

    w_b: float = Field(1.0, ge=0, le=HIGHEST, description="Weight of the backlog.")
    w_s: float = Field(1.0, ge=0, le=HIGHEST, description="Weight of the request's own work.")
    w_q: float = Field(0.05, ge=0, le=HIGHEST, description="Weight of the count, seconds per request.")
    rho: float = Field(1.0, ge=0, le=HIGHEST, description="ρ, weight of the KV pressure.")
    sigma_tight: float = Field(2.0, ge=0, le=HIGHEST, description="σ of the class tight.")
    sigma_loose: float = Field(1.0, ge=0, le=HIGHEST, description="σ of the class loose.")
    tau: Literal["calibrated", "single"] = Field(
        "calibrated", description="τ_dec at the calibration's concurrency, or of a single stream."
    )
    tau_scale: float = Field(1.0, gt=0, le=HIGHEST, description="Factor on τ_dec and τ_pre.")
    backlog: Literal["remaining", "committed"] = Field(
        "remaining",
        description="Decode backlog: predicted output not yet out, or all of it until the request ends.",
    )
    sample: Literal[2] | None = Field(
        None, description="2: the cheaper of two instances drawn at random; None: the cheapest of all."
    )
    guard: float | None = Field(
        None,
        ge=1,
        le=HIGHEST,
        description="Rules out instances with more than guard·(1 + mean count) requests.",
    )


@register
class MarginalCost(CompiledPolicy):
    """The instance to which the request adds the least cost, in each pool.

    Formula of decode instance d, in seconds; ties go to the lowest index:

        cost(d)    = w_b·backlog(d)·σ + w_s·ô·τ_dec(d)·(1 + ρ·press⁺(d))·σ + w_q·queue(d)
        backlog(d) = τ_dec(d)·Σ max(0, ô − tokens out) over the ledger's requests on d (committed: Σ ô)
        press⁺(d)  = (Σ (p + ô) over the ledger's requests on d + p + ô) / KV capacity of d, not clipped
        queue(d)   = the ledger's requests on d
        σ          = sigma_tight or sigma_loose, by the request's SLO class

    and of prefill instance p, whose ledger holds the prompts that await or are in prefill there:

        cost(p) = w_b·τ_pre(p)·Σp·σ + w_s·p·τ_pre(p)·(1 + ρ·(Σp + p)/KV capacity of p)·σ + w_q·queued(p)

    A mixed instance costs the sum of both. τ_dec and τ_pre are the router's constants (seconds per token),
    which need not be the hardware's; `tau_scale` multiplies both. `guard` g rules out an instance with
    queue > g·(1 + mean queue of its pool); `sample` 2 takes the cheaper of two (as in `power-of-two`, the
    prefill pool being drawn from first).

    Source: arXiv 2609.16206, Algorithm 1. The study's weights are not published: w_b = w_s = ρ = 1 and σ =
    2 and 1 are ours, and so is w_q > 0, without which σ would be a factor of every candidate's cost and
    change nothing. `sample` and `guard` are named there as future work.
    """

    name = "marginal-cost"
    accepts = MarginalCostParameters
    number = episode.MARGINAL_COST
    needs_constants = True
    parameters: MarginalCostParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """Four ratios, on log scales; w_b and sigma_loose stay 1.

        Costs are only compared, so that a common factor is free: w_b sets the unit. A factor on both σ is one on w_b
        and w_s, that is on 1 / w_q, and so is `tau_scale`. Among equal instances only w_s·ρ matters, among unlike
        ones both do.
        """
        return (
            Dimension("w_s", 0.01, 100.0, 1.0, "log"),
            Dimension("w_q", 0.0005, 50.0, 0.05, "log"),
            Dimension("rho", 0.01, 100.0, 1.0, "log"),
            Dimension("sigma_tight", 0.1, 100.0, 2.0, "log"),
        )

    def vector(self) -> npt.NDArray[np.float64]:
        """The parameters in the order of `compiled.marginal_cost.PARAMETERS`."""
        p = self.parameters
        # Every τ has w_b or w_s beside it, so that a factor on τ is one on these.
        values = {
            "w_b": p.w_b * p.tau_scale,
            "w_s": p.w_s * p.tau_scale,
            "w_q": p.w_q,
            "rho": p.rho,
            "sigma_tight": p.sigma_tight,
            "sigma_loose": p.sigma_loose,
            "single": float(p.tau == "single"),
            "committed": float(p.backlog == "committed"),
            "sample": float(p.sample or 0),
            "guard": np.inf if p.guard is None else p.guard,
        }
        return np.array([values[name] for name in PARAMETERS])


class SimulatorNaiveParameters(MarginalCostParameters):
    """Parameters of `simulator-naive`."""

    tau_scale: float = Field(NAIVE_TAU_SCALE, gt=0, le=HIGHEST, description="Factor on τ_dec and τ_pre.")


@register
class SimulatorNaive(MarginalCost):
    """`marginal-cost` with constants that do not match the hardware: every τ is 7.4 times too small.

    The cluster stays as it is; only the router is mistaken. With τ too small the size-aware terms fall
    silent beside w_q·queue, and the policy degenerates into counting requests.

    Source: arXiv 2609.16206, "uncalibrated constants"; on its testbed the simulator's τ_dec was 7.4 times
    smaller than the measured one.
    """

    name = "simulator-naive"
    accepts = SimulatorNaiveParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """Nothing: tuned, it would no longer be mistaken."""
        return ()
