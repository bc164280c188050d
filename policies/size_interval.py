"""Size intervals: assignment by predicted size, with spill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from .compiled import episode
from .compiled.size_interval import STAGE
from .compiled_policy import CompiledPolicy
from .policy import HIGHEST, Parameters
from .registry import register
from .search_space import Dimension

MOST_CUTS = 7
"""Up to so many cuts of a stage are tuned one by one, more by their ends."""

Cuts = Annotated[list[Annotated[float, Field(gt=0, le=HIGHEST)]], AfterValidator(sorted)] | None
Order = Literal["ascending", "descending"]


class SizeIntervalParameters(Parameters):
    """Parameters of `size-interval`."""

    prefill_cuts: Cuts = Field(
        None, description="P - 1 prompt lengths in any order, tokens; none: spread evenly in the logarithm."
    )
    prefill_low: float = Field(256.0, gt=0, le=HIGHEST, description="Where the spread begins, tokens; without cuts.")
    prefill_high: float = Field(8192.0, gt=0, le=HIGHEST, description="Where it ends, tokens; without cuts.")
    prefill_up: float = Field(50.0, ge=0, le=HIGHEST, description="Price of the whole pool upwards, tokens.")
    prefill_down: float = Field(20_000.0, ge=0, le=HIGHEST, description="The same downwards, tokens.")
    prefill_loose: float = Field(1.0, gt=0, le=HIGHEST, description="Factor on prompts of class loose.")
    prefill_order: Order = Field("ascending", description="Whether sizes rise or fall with the index.")
    decode_cuts: Cuts = Field(
        None, description="D - 1 predicted lengths in any order, tokens; none: spread evenly in the logarithm."
    )
    decode_low: float = Field(16.0, gt=0, le=HIGHEST, description="Where the spread begins, tokens; without cuts.")
    decode_high: float = Field(4096.0, gt=0, le=HIGHEST, description="Where it ends, tokens; without cuts.")
    decode_up: float = Field(0.0, ge=0, le=HIGHEST, description="Price of the whole pool upwards, base steps.")
    decode_down: float = Field(0.05, ge=0, le=HIGHEST, description="The same downwards, base steps.")
    decode_loose: float = Field(1.0, gt=0, le=HIGHEST, description="Factor on predictions of class loose.")
    decode_order: Order = Field("ascending", description="Whether sizes rise or fall with the index.")


@register
class SizeInterval(CompiledPolicy):
    """Each instance serves an interval of sizes; a request leaves its own where another is cheaper by the price.

    Formula of prefill instance p and decode instance d, in seconds; ties go to the lowest index:

        cost(p) = queued_work(p) + own_prefill(p) + distance(p)·τ_pre(p)     as in `least-ttft`
        cost(d) = projected_step(d) + distance(d)·base(d)                    as in `min-tpot`

        distance(i) = up·(i − k) / (n − 1) above the request's interval k, down·(k − i) / (n − 1) below it
        k           = number of cuts at or below the size; size = p for prefill, ô for decode, times `loose` for
                      requests of class loose

    n instances have n − 1 cuts, instance i the interval between cut i and cut i + 1 (`descending`: from the other
    end). By default cut k is low·(high / low)^(k / n), k = 1 … n − 1. Prices are those of the whole pool's length:
    so many tokens more in the queue, so many base steps more. Without them the policy is
    `least-ttft(decode=min-tpot)`; with high ones nothing ever spills. A mixed instance costs the sum of both, with
    n − 1 cuts for each stage.

    Source: size interval task assignment, Harchol-Balter, Crovella and Murta, "On choosing a task assignment policy
    for a distributed server system", Journal of Parallel and Distributed Computing 59(2), 1999. The spill is ours.
    """

    name = "size-interval"
    accepts = SizeIntervalParameters
    number = episode.SIZE_INTERVAL
    needs_constants = True
    parameters: SizeIntervalParameters

    @classmethod
    def search_space(cls, prefills: int, decodes: int) -> tuple[Dimension, ...]:
        """Of each stage with several instances: the cuts, or their ends where there are many; prices; `loose`."""
        return (*_dimensions("prefill", prefills or decodes), *_dimensions("decode", decodes))

    def vector_for(self, prefills: int, decodes: int) -> npt.NDArray[np.float64]:
        """Both stages in the order of `compiled.size_interval.STAGE`, then the cuts of both.

        Raises:
            ValueError: cuts for a pool of another size.
        """
        sizes = {"prefill": prefills or decodes, "decode": decodes}
        cuts = {stage: self._cuts(stage, instances) for stage, instances in sizes.items()}
        numbers: list[float] = []
        for stage, instances in sizes.items():
            values = {name: self._of(stage, name) for name in ("up", "down", "loose")}
            values["up"] /= max(1, instances - 1)
            values["down"] /= max(1, instances - 1)
            values["descending"] = float(self._of(stage, "order") == "descending")
            values["cuts"] = float(len(cuts[stage]))
            numbers += [values[name] for name in STAGE]
        return np.array([*numbers, *cuts["prefill"], *cuts["decode"]])

    def _cuts(self, stage: str, instances: int) -> Sequence[float]:
        given: Sequence[float] | None = self._of(stage, "cuts")
        if given is None:
            return sorted(spread_cuts(self._of(stage, "low"), self._of(stage, "high"), instances))
        if len(given) != instances - 1:
            raise ValueError(
                f"{self.name}: {stage}_cuts holds {len(given)} numbers; a pool of {instances} needs {instances - 1}"
            )
        return given

    def _of(self, stage: str, name: str) -> Any:
        return getattr(self.parameters, f"{stage}_{name}")


def spread_cuts(low: float, high: float, instances: int) -> list[float]:
    """The n − 1 cuts between n instances, evenly spread in the logarithm between two lengths (tokens)."""
    return [low * (high / low) ** (k / instances) for k in range(1, instances)]


_LONGEST = {"prefill": 16384.0, "decode": 8192.0}
"""Up to where cuts are tuned, tokens."""

_DEAREST = {"prefill": (1e5, 1e6), "decode": (1.0, 10.0)}
"""Up to where the prices upwards and downwards are tuned, tokens and base steps."""


def _dimensions(stage: str, instances: int) -> list[Dimension]:
    if instances == 1:
        return []
    default = {name: getattr(SizeIntervalParameters(), f"{stage}_{name}") for name in ("low", "high", "up", "down")}
    ends = {"low": default["low"], "high": default["high"]}
    shortest, longest = 4.0, _LONGEST[stage]
    if instances - 1 <= MOST_CUTS:
        starts = spread_cuts(**ends, instances=instances)
        found = [Dimension(f"{stage}_cuts", shortest, longest, x, "log", k) for k, x in enumerate(starts)]
    else:
        found = [Dimension(f"{stage}_{end}", shortest, longest, start, "log") for end, start in ends.items()]
    up, down = _DEAREST[stage]
    if default["up"] > 0:
        found.append(Dimension(f"{stage}_up", up / 1e5, up, default["up"], "log"))
    else:
        found.append(Dimension(f"{stage}_up", 0.0, up, default["up"]))
    found.append(Dimension(f"{stage}_down", down / 1e5, down, default["down"], "log"))
    return [*found, Dimension(f"{stage}_loose", 1 / 64, 64.0, 1.0, "log")]
