"""Beliefs of a router at one of its admissions, run on without further arrivals, and what then really happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs import router_constants
from disaggroute.envs.admission import Admission
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.simulator import FOREVER, Simulator, entries
from disaggroute.envs.simulator.known import KNOWN_WORDS
from disaggroute.envs.trace import Trace
from disaggroute.policies.compiled import lookahead as core
from disaggroute.policies.lookahead import Lookahead
from disaggroute.policies.policy import Policy


def desk_at(policy: Lookahead, admission: Admission) -> Any:
    """The desk of a policy after it has ranked the candidates and noted what is known; nothing is tried yet."""
    desk = policy._desk_at(admission)
    with policy._base.shown(admission):
        core.begin_pending(admission.address, desk.address)
    return desk


def known_at(policy: Lookahead, admission: Admission) -> npt.NDArray[np.int64]:
    """(n, KNOWN_WORDS) what the router knows of each request in flight."""
    desk = desk_at(policy, admission)
    n = int(desk.words[core.W_KNOWN])
    return np.array(desk.known[: n * KNOWN_WORDS]).reshape(n, KNOWN_WORDS)


def believed_end(policy: Lookahead, admission: Admission, pair: tuple[int, int]) -> npt.NDArray[Any]:
    """Records of the requests in flight and, last, of the pending one, as the belief runs on after it was sent."""
    desk = desk_at(policy, admission)
    core.try_pending(admission.address, desk.address, 1)
    n = int(desk.words[core.W_KNOWN])
    desk.rows["arrival"][n + 1] = FOREVER
    block = int(desk.words[core.W_BELIEF])
    entries.send_pending(block, *pair, 1.0)
    entries.run(block, 0, 0, FOREVER)
    return np.array(desk.records[: n + 1])


def real_end(simulated: Simulator, pair: tuple[int, int]) -> npt.NDArray[Any]:
    """Records of the same requests, as they end when none follows the pending one; sorted by arrival."""
    now, index = simulated.now, simulated.admission().index
    simulated.send(*pair)
    assert not simulated.run()
    records = simulated.records[: index + 1]
    return np.sort(records[records["end"] > now], order="arrival")


def cut(of: Trace, count: int) -> Trace:
    """The first requests of a trace."""
    return of.select(slice(0, count))


def simulator(on: Cluster, of: Trace, predicted: npt.NDArray[np.int32] | None = None, **changes: Any) -> Simulator:
    """A fresh simulator with predictions, by default exact ones."""
    constants = router_constants.from_cluster(on).overridden(**changes)
    return Simulator(on, of, predicted=of.output if predicted is None else predicted, constants=constants)


def ahead_of(on: Cluster, of: Trace, by: Policy, count: int) -> tuple[Simulator, Admission]:
    """A simulator that awaits the decision after `count` of a policy, with nothing behind it."""
    simulated = simulator(on, cut(of, count + 1))
    for _ in range(count):
        assert simulated.run()
        simulated.send(*by.route(simulated.admission()))
    assert simulated.run()
    return simulated, simulated.admission()
