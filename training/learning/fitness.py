"""How good a candidate is: goodput over whole episodes, less what it pays for elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ...envs.cluster import PS_PER_S
from ...envs.records import FINISHED
from ...envs.setting import Prepared
from ...envs.trace import SLO_CLASSES
from ..metrics import met_targets
from ..trials import Measure, goodput_alone

Floats = npt.NDArray[np.float64]


class Guards(BaseModel):
    """What is taken off a candidate's goodput where it pays for it elsewhere; all against the baseline's same traces.

    Attributes:
        group: times the loss of the class or family that loses most (share of its requests), beyond `allowed_loss`.
        allowed_loss: see there.
        tail: times ln(P99.9 / baseline's P99.9), where above ln(allowed_tail), of TTFT and of E2E slowdown.
        allowed_tail: see there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    group: float = Field(0.0, ge=0, le=100)
    allowed_loss: float = Field(0.03, ge=0, le=1)
    tail: float = Field(0.0, ge=0, le=100)
    allowed_tail: float = Field(1.25, gt=0, le=1_000)

    @property
    def wanted(self) -> bool:
        """Whether anything is taken off."""
        return self.group > 0 or self.tail > 0


def score(numbers: Floats, guards: Guards) -> Floats:
    """Mean goodput of each policy less what the guards take off.

    Args:
        numbers: (k, traces, columns) of `goodput_alone` or `guarded`; the first policy is the baseline.
        guards: what is taken off.

    Returns:
        (k,) scores.
    """
    goodputs: Floats = numbers[:, :, 0].mean(axis=1)
    if not guards.wanted:
        return goodputs
    tails = np.log(np.maximum(numbers[:, :, 1:3].mean(axis=1), 1e-9))
    beyond = np.maximum(tails - tails[0] - math.log(guards.allowed_tail), 0.0).sum(axis=1)
    groups = numbers[:, :, 3:]
    # A class that a short trace does not hold says nothing there.
    held = ~np.isnan(groups)
    shares = np.where(held, groups, 0.0).sum(axis=1) / np.maximum(held.sum(axis=1), 1)
    losses = np.maximum((shares[0] - shares).max(axis=1) - guards.allowed_loss, 0.0)
    found: Floats = goodputs - guards.tail * beyond - guards.group * losses
    return found


def guarded(records: npt.NDArray[Any], prepared: Prepared) -> tuple[float, ...]:
    """The measure with guards: goodput, P99.9 of TTFT (s) and of E2E slowdown, goodput of each class and family.

    A request that never got its first or last token counts in a quantile with the length of the window. A group without
    requests has no goodput: NaN.
    """
    trace, inside = prepared.trace, prepared.window.holds(prepared.trace)
    met = met_targets(records, trace)[inside]
    rows, slo, family = records[inside], trace.slo[inside], trace.family[inside]
    longest = prepared.window.seconds
    finished = rows["status"] == FINISHED
    ttft = np.where(rows["first_token"] >= 0, (rows["first_token"] - rows["arrival"]) / PS_PER_S, longest)
    e2e = np.where(finished, (rows["last_token"] - rows["arrival"]) / PS_PER_S, longest)
    slowdown = e2e / (prepared.alone[inside] / PS_PER_S)
    groups = [met[slo == k] for k in range(len(SLO_CLASSES))] + [met[family == k] for k in range(len(trace.families))]
    shares = (float(group.mean()) if len(group) else math.nan for group in groups)
    return float(met.mean()), _p999(ttft), _p999(slowdown), *shares


def _p999(values: Floats) -> float:
    rank = min(math.ceil(0.999 * len(values)), len(values)) - 1
    return float(np.partition(values, rank)[rank])


def measure_of(guards: Guards) -> Measure:
    """What the score needs to know of each run."""
    return guarded if guards.wanted else goodput_alone
