"""`simulate` with a policy by name: one policy, one trace, one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..envs import router_constants
from ..envs.admission import Router
from ..envs.cluster import Cluster
from ..envs.router_constants import RouterConstants
from ..envs.simulator import SimulationResult
from ..envs.simulator import simulate as run
from ..envs.trace import Trace
from . import registry

if TYPE_CHECKING:
    from ..envs.predictors import Predictor


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: str | Router = "round-robin",
    *,
    predictor: Predictor | str | npt.NDArray[np.int32] = "bucket",
    seed: int = 0,
    constants: RouterConstants | None = None,
    log_decisions: bool = False,
    observe: bool = False,
) -> SimulationResult:
    """Runs a policy on a trace and a cluster to the end.

    Args:
        trace: the requests.
        cluster: the instances.
        policy: a policy, or its name with parameters where wanted, such as `marginal-cost(w_q=0.1)`.
        predictor: gives ô: a predictor, its name, or (N,) tokens.
        seed: for what is random in the policy and the predictor.
        constants: what the router believes of the instances; None: what a perfect calibration would give.
        log_decisions: keep what the router saw of the chosen pair.
        observe: keep everything that the router saw (slow; for tests and study).

    Raises:
        ValueError: an unknown policy or predictor, bad parameters, or a request that cannot fit.
    """
    return run(
        trace,
        cluster,
        policy=registry.parse(policy) if isinstance(policy, str) else policy,
        predictor=predictor,
        seed=seed,
        constants=router_constants.from_cluster(cluster) if constants is None else constants,
        log_decisions=log_decisions,
        observe=observe,
    )
