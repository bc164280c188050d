"""How long learned policies take to decide: in compiled episodes, and through the object in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time_ns

import numpy as np
import numpy.typing as npt

from ..envs.simulator import Simulator, entries
from ..policies import registry
from ..policies.compiled_policy import CompiledPolicy
from ..policies.linear import Linear
from ..policies.network import Network
from ..policies.network_shape import Shape
from .drive import WORKLOAD, Drive, Say
from .measurement import Result, at_least, pinned

TOPOLOGIES = ("2P4D", "16P48D")
HIDDEN = (16,)


def learned() -> dict[str, CompiledPolicy]:
    """The tuned `linear`, and a `network` that decides nearly as it does and in which no weight is 0."""
    linear = registry.parse(f"linear@{WORKLOAD}")
    assert isinstance(linear, Linear)
    shape = Shape(HIDDEN)
    vector = Network.from_linear(linear, shape).vector_of_weights
    vector += 1e-6 * np.random.default_rng(0).standard_normal(shape.size).astype(np.float32)
    return {"linear": linear, "network": Network.from_vector(shape, vector)}


def measure(
    topology: str,
    rate: float,
    *,
    policies: Callable[[], dict[str, CompiledPolicy]] = learned,
    requests: int = 100_000,
    routes: int = 5_000,
    repeats: int = 5,
    seed: int = 0,
    say: Say = lambda _: None,
) -> list[Result]:
    """CPU time of a decision on one core.

    Args:
        topology: such as 2P4D.
        rate: requests per second of simulated time.
        policies: makes the policies by name.
        requests: about how many requests an episode has.
        routes: how many decisions are made in Python, after as many that are not timed.
        repeats: how often each number is measured.
        seed: of the trace.
        say: told what is being done.

    Returns:
        `policies/POLICY/TOPOLOGY/episode`, µs per decision by which a compiled episode takes longer than the same
        episode whose decisions are given; and `policies/POLICY/TOPOLOGY/route`, µs of `policy.route(admission)`.

    Raises:
        ValueError: an unknown topology, or a count below 1.
        RuntimeError: a replay had other records.
    """
    for name, count in {"requests": requests, "routes": routes, "repeats": repeats}.items():
        at_least(name, count)
    results = []
    drive = Drive.make(topology, rate, requests, seed)
    with pinned():
        for name, policy in policies().items():
            title = f"policies/{name}/{topology}"
            say(title)
            spent = _in_episodes(drive, policy, repeats)
            results.append(Result.of(f"{title}/episode", "µs", spent, requests=len(drive.trace)))
            spent = _in_python(drive, policy, max(1, min(routes, len(drive.trace) // 2)), repeats)
            results.append(Result.of(f"{title}/route", "µs", spent))
    return results


def _in_episodes(drive: Drive, policy: CompiledPolicy, repeats: int) -> list[float]:
    """µs per decision; episode and replay take turns, and the first pair is not counted."""
    given: Sequence[npt.NDArray[np.int64]] = ()
    spent = []
    for _ in range(repeats + 1):
        simulator = drive.simulator()
        started = thread_time_ns()
        policy.run_compiled(simulator, 0)
        decided = thread_time_ns() - started
        if not given:
            given = [np.ascontiguousarray(simulator.records[role], np.int64) for role in ("prefill", "decode")]
        replayed = drive.simulator()
        started = thread_time_ns()
        replayed.run_with(entries.run, *(column.ctypes.data for column in given))
        spent.append((decided - (thread_time_ns() - started)) / len(drive.trace) / 1e3)
        if (replayed.records != simulator.records).any():
            raise RuntimeError(f"{policy}: the replay is another episode")
    return spent[1:]


def _in_python(drive: Drive, policy: CompiledPolicy, routes: int, repeats: int) -> list[float]:
    """µs per call of `route`, each on another admission of one run."""
    spent = []
    for _ in range(repeats):
        simulator = drive.simulator()
        policy.reset(0)
        _route(simulator, policy, routes)
        spent.append(_route(simulator, policy, routes) / routes / 1e3)
    return spent


def _route(simulator: Simulator, policy: CompiledPolicy, count: int) -> int:
    """Routes so many requests; ns that the decisions took."""
    spent = 0
    for _ in range(count):
        if not simulator.run():
            break
        admission = simulator.admission()
        started = thread_time_ns()
        pair = policy.route(admission)
        spent += thread_time_ns() - started
        simulator.send(*pair)
    return spent
