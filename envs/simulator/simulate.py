"""`simulate`: one policy or assignment, one trace, one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..admission import Router
from ..cluster import PS_PER_S, Cluster
from ..records import DECODE_VIEW, PREFILL_VIEW
from ..router_constants import RouterConstants
from ..time_limits import last_time
from ..trace import Trace
from . import entries
from .choices import reset_policy, route_pending
from .simulator import FOREVER, Simulator, resolve_predictor

if TYPE_CHECKING:
    from ..predictors import Predictor

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What a run left.

    Attributes:
        records: (N,) one row per request, dtype RECORD.
        decisions: (n,) what the router saw of each chosen pair, dtype DECISION; with `observe` the request index only.
        prefill_views: (n, P, 7) with `observe`, else empty; columns PREFILL_VIEW.
        decode_views: (n, D, 11) with `observe`, else empty; columns DECODE_VIEW.
        predicted: (n,) ô, with `observe`.
        poll_times: (n,) ps, with `observe`.
    """

    records: npt.NDArray[Any]
    decisions: npt.NDArray[Any]
    prefill_views: Integers
    decode_views: Integers
    predicted: Integers
    poll_times: Integers


def simulate(
    trace: Trace,
    cluster: Cluster,
    *,
    policy: Router | None = None,
    assignment: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    predictor: Predictor | str | npt.NDArray[np.int32] = "bucket",
    seed: int = 0,
    constants: RouterConstants | None = None,
    log_decisions: bool = False,
    observe: bool = False,
) -> SimulationResult:
    """Runs a trace on a cluster to the end.

    Args:
        trace: the requests.
        cluster: the instances.
        policy: who decides; its compiled form is used if it has one.
        assignment: instead of a policy, (N,) prefill and (N,) decode indices by request (aggregated: equal). An
            instance that may not be assigned is replaced by the next one upwards, cyclically, that may.
        predictor: gives ô: a predictor, its name, or (N,) tokens.
        seed: for what is random in the policy, the predictor and the dealing of requests to several routers.
        constants: the router's constants (default: from the policy or none).
        log_decisions: keep what the router saw of the chosen pair.
        observe: keep everything that the router saw (slow; for tests and study).

    Raises:
        ValueError: a request cannot fit, both or neither of policy and assignment, or an assignment out of range.
        PolicyError: the policy failed or chose what may not be chosen; names it, the request and the pools.
    """
    if (policy is None) == (assignment is None):
        both = "given" if policy is not None else "missing"
        raise ValueError(f"policy and assignment are both {both}; exactly one is needed")
    if policy is not None and not hasattr(policy, "route"):
        raise ValueError(f"policy is {policy!r}; it must have the methods reset and route")
    predicted, learns = resolve_predictor(predictor, trace, seed)
    simulator = Simulator(
        cluster,
        trace,
        predicted=predicted,
        learns=learns,
        seed=seed,
        constants=constants,
        log_decisions=log_decisions,
    )
    until = last_time(cluster, trace.arrival)
    pairs = None if assignment is None else check_assignment(assignment, trace, cluster)
    if policy is not None:
        reset_policy(policy, seed)
    if observe:
        seen = _run_observed(simulator, policy, pairs, until)
        _check_ended(simulator, until)
        return seen
    if pairs is not None:
        simulator.run_with(entries.run, pairs[0].ctypes.data, pairs[1].ctypes.data, until=until)
    elif policy is not None:
        run_policy(simulator, policy, seed, until)
    _check_ended(simulator, until)
    empty = np.zeros(0, np.int64)
    return SimulationResult(simulator.records, simulator.decisions, empty, empty, empty, empty)


def run_policy(simulator: Simulator, policy: Router, seed: int, until: int = FOREVER) -> None:
    """Runs a policy to the end or to `until` (ps), in the compiled loop if it has a compiled form (`run_compiled`).

    Raises:
        PolicyError: a policy in Python failed or chose what may not be chosen (`choices.route_pending`).
    """
    compiled = getattr(policy, "run_compiled", None)
    if compiled is not None and compiled(simulator, seed, until):
        return
    while simulator.run(until):
        route_pending(simulator, policy, simulator.admission())


def check_assignment(
    assignment: tuple[npt.ArrayLike, npt.ArrayLike], trace: Trace, cluster: Cluster
) -> tuple[Integers, Integers]:
    """The assignment as int64 arrays.

    Raises:
        ValueError: a wrong length or an index out of range; names the request.
    """
    counts = (len(cluster.mixed),) * 2 if cluster.aggregated else (len(cluster.prefill), len(cluster.decode))
    columns = []
    if len(assignment) != 2:
        raise ValueError(f"assignment holds {len(assignment)} columns; it must be prefill and decode indices")
    for name, given, count in zip(("prefill", "decode"), assignment, counts, strict=True):
        column = np.asarray(given)
        if column.shape != (len(trace),):
            raise ValueError(f"assignment: {name} has shape {column.shape}; it must be ({len(trace)},)")
        if column.dtype.kind not in "iu" and len(trace):
            raise ValueError(f"assignment: {name} has dtype {column.dtype}; it must hold integers")
        bad = (column < 0) | (column >= count)
        if bad.any():
            k = int(np.argmax(bad))
            raise ValueError(
                f"assignment: {name} of request {k} is {column[k]}; allowed are 0 to {count - 1}"
            )
        columns.append(np.ascontiguousarray(column, np.int64))
    if cluster.aggregated and (columns[0] != columns[1]).any():
        k = int(np.argmax(columns[0] != columns[1]))
        raise ValueError(f"assignment: request {k} has two different mixed instances")
    return columns[0], columns[1]


def _check_ended(simulator: Simulator, until: int) -> None:
    left = len(simulator.trace) - simulator.ended
    if left:
        raise RuntimeError(
            f"{simulator.trace.name} on {simulator.cluster.name}: {left} requests are still in flight after "
            f"{until // (86_400 * PS_PER_S)} days; times end there, so lower the rate or shorten the trace"
        )


def _next_open(view: Integers, index: int) -> int:
    available = view[:, -1]
    while not available[index]:
        index = (index + 1) % len(available)
    return index


def _run_observed(
    simulator: Simulator, policy: Router | None, pairs: tuple[Integers, Integers] | None, until: int
) -> SimulationResult:
    seen = []
    while simulator.run(until):
        admission = simulator.admission()
        seen.append(admission)
        if pairs is not None:
            decode = _next_open(admission.decode, int(pairs[1][admission.index]))
            same = admission.aggregated
            prefill = decode if same else _next_open(admission.prefill, int(pairs[0][admission.index]))
            simulator.send(prefill, decode)
        elif policy is not None:
            route_pending(simulator, policy, admission)
    rows = [len(simulator.cluster.mixed)] * 2
    if not simulator.cluster.aggregated:
        rows = [len(simulator.cluster.prefill), len(simulator.cluster.decode)]
    return SimulationResult(
        records=simulator.records,
        decisions=np.array([a.index for a in seen], np.int64),
        prefill_views=np.array([a.prefill for a in seen], np.int64).reshape(len(seen), rows[0], len(PREFILL_VIEW)),
        decode_views=np.array([a.decode for a in seen], np.int64).reshape(len(seen), rows[1], len(DECODE_VIEW)),
        predicted=np.array([a.predicted for a in seen], np.int64),
        poll_times=np.array([a.poll_time for a in seen], np.int64),
    )
