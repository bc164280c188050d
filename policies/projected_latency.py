"""Least projected TTFT and least projected TPOT."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .compiled import episode
from .compiled.projected_latency import IN_TURN, LEAST_LOADED, PARAMETERS, PROJECTED
from .compiled_policy import CompiledPolicy
from .policy import Parameters
from .registry import register
from .search_space import Dimension

_WAYS = {
    "least-loaded": LEAST_LOADED,
    "round-robin": IN_TURN,
    "least-ttft": PROJECTED,
    "min-tpot": PROJECTED,
}


class LeastTTFTParameters(Parameters):
    """Parameters of `least-ttft`."""

    decode: Literal["least-loaded", "round-robin", "min-tpot"] = Field(
        "least-loaded", description="How the decode instance is picked."
    )


@register
class LeastTTFT(CompiledPolicy):
    """The prefill instance on which the request's first token is projected to come first.

    Formula, in seconds, with the router's constants of each instance; ties go to the lowest index:

        ttft(p)     = queued_work(p) + own_prefill(p)
        queued_work = τ_pre(p)·Σ prompt tokens that await or are in prefill on p, by the ledger
        own_prefill = base(p) + c1(p)·p + c2(p)·p²

    The decode instance is picked as the policy that `decode` names would. On a mixed instance prefill and
    decodes share the steps: there ttft + projected_step of `min-tpot` is least, whatever `decode` says.

    The terms are the features of the same names. Source: least work left, see Harchol-Balter, "Performance
    Modeling and Design of Computer Systems", Cambridge University Press 2013, chapter 24; with prefill times,
    Mooncake's scheduler (arXiv 2407.00079, Algorithm 1).
    """

    name = "least-ttft"
    accepts = LeastTTFTParameters
    number = episode.PROJECTED_LATENCY
    needs_constants = True
    parameters: LeastTTFTParameters

    def vector(self) -> npt.NDArray[np.float64]:
        """The parameters in the order of `compiled.projected_latency.PARAMETERS`."""
        return _vector(prefill="least-ttft", decode=self.parameters.decode, ttft=1.0)


class MinTPOTParameters(Parameters):
    """Parameters of `min-tpot`."""

    prefill: Literal["least-loaded", "round-robin", "least-ttft"] = Field(
        "least-loaded", description="How the prefill instance is picked."
    )
    growth: float = Field(
        0.0, ge=0, le=1, description="Share of the predicted output still to come that counts as context."
    )


@register
class MinTPOT(CompiledPolicy):
    """The decode instance whose step is projected to be shortest with this request in it.

    Formula, in seconds, with the router's constants of each instance; ties go to the lowest index:

        projected_step(d) = base(d) + b(d)·(B + 1) + C(d)·(K + growth·R + p + growth·ô)

    B, K and R are the ledger's requests on d, Σ (prompt + tokens out) and Σ max(0, ô − tokens out) over them.
    With `growth` 0 it is the feature of the same name, the step right after admission; ½ takes the context
    half-way to the end of all of them, 1 at the end. The prefill instance is picked as the policy that
    `prefill` names would. In an aggregated cluster projected_step alone decides.

    Source: the step time of the model, docs/model.md.
    """

    name = "min-tpot"
    accepts = MinTPOTParameters
    number = episode.PROJECTED_LATENCY
    needs_constants = True
    parameters: MinTPOTParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """The growth."""
        return (Dimension("growth", 0.0, 1.0, 0.0),)

    def vector(self) -> npt.NDArray[np.float64]:
        """The parameters in the order of `compiled.projected_latency.PARAMETERS`."""
        parameters = self.parameters
        return _vector(prefill=parameters.prefill, decode="min-tpot", growth=parameters.growth)


def _vector(prefill: str, decode: str, growth: float = 0.0, ttft: float = 0.0) -> npt.NDArray[np.float64]:
    values = {"prefill": _WAYS[prefill], "decode": _WAYS[decode], "growth": growth, "ttft": ttft}
    return np.array([float(values[name]) for name in PARAMETERS])
