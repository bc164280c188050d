"""`simulate` with a policy by name or a recorded assignment: one trace, one cluster."""

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
    policy: str | Router | None = None,
    *,
    assignment: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    predictor: Predictor | str | npt.NDArray[np.int32] = "bucket",
    seed: int = 0,
    constants: RouterConstants | None = None,
    log_decisions: bool = False,
    observe: bool = False,
) -> SimulationResult:
    """Runs a trace on a cluster to the end, routed by a policy or as an assignment says.

    Args:
        trace: the requests.
        cluster: the instances.
        policy: a policy, or its name with parameters where wanted, such as `marginal-cost(w_q=0.1)`.
        assignment: instead of a policy, (N,) prefill and (N,) decode indices by request (aggregated: equal). An
            instance that may not be assigned is replaced by the next one upwards, cyclically, that may.
        predictor: gives ô: a predictor, its name, or (N,) tokens.
        seed: for what is random in the policy, the predictor and the dealing of requests to several routers.
        constants: what the router believes of the instances; None: what a perfect calibration would give.
        log_decisions: keep what the router saw of the chosen pair.
        observe: keep everything that the router saw (slow; for tests and study).

    Raises:
        ValueError: an unknown policy or predictor, bad parameters, a request that cannot fit, both or neither of
            policy and assignment, or an assignment out of range.
        PolicyError: the policy failed or chose what may not be chosen; names it, the request and the pools.
    """
    return run(
        trace,
        cluster,
        policy=registry.parse(policy) if isinstance(policy, str) else policy,
        assignment=assignment,
        predictor=predictor,
        seed=seed,
        constants=router_constants.from_cluster(cluster) if constants is None else constants,
        log_decisions=log_decisions,
        observe=observe,
    )
