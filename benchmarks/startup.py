"""How long a new process takes to be of use."""

from __future__ import annotations

import tempfile

from .drive import PROFILE, WORKLOAD, Say
from .interpreter import PACKAGE, seconds_to_end
from .measurement import Result, at_least, pinned

IMPORT = f"import {PACKAGE}"

IMPORT_SIMULATOR = f"from {PACKAGE} import simulate"

FIRST_STEP = f"""
from {PACKAGE}.envs import cluster_config, router_constants, workloads
from {PACKAGE}.envs.simulator import Simulator
from {PACKAGE}.policies import registry

cluster = cluster_config.from_topology("2P4D", "{PROFILE}").build()
trace = workloads.make("{WORKLOAD}").generate(rate=14, duration_s=360, seed=0)
constants = router_constants.from_cluster(cluster)
simulator = Simulator(cluster, trace, learns="bucket", constants=constants)
policy = registry.make("marginal-cost")
simulator.run()
simulator.send(*policy.route(simulator.admission()))
"""
"""Everything up to the first simulated decision, as a user would write it."""

COLD_COMPILE = f"""
from {PACKAGE}.training.compilation import compile_all

compile_all(lambda _: None)
"""
"""What `evaluate` does before its first run."""


def measure(*, repeats: int = 5, cold_repeats: int = 1, say: Say = lambda _: None) -> list[Result]:
    """Seconds from the start of a process, on one core.

    Args:
        repeats: processes per number.
        cold_repeats: processes that compile everything; 0 leaves that out.
        say: told what is being done.

    Returns:
        `startup/import` and `startup/import-simulator` (less the start of a bare interpreter),
        `startup/first-step` (warm cache), `startup/cold-compile` (empty cache), s.

    Raises:
        ValueError: a count out of range.
        RuntimeError: a process failed.
    """
    at_least("repeats", repeats)
    at_least("cold_repeats", cold_repeats, 0)
    bare, package, simulator, step, cold = [], [], [], [], []
    with pinned():
        say("startup: filling the cache of compiled code")
        seconds_to_end(FIRST_STEP)
        say("startup/import, startup/import-simulator, startup/first-step")
        for _ in range(repeats):
            bare.append(seconds_to_end(""))
            package.append(seconds_to_end(IMPORT) - bare[-1])
            simulator.append(seconds_to_end(IMPORT_SIMULATOR) - bare[-1])
            step.append(seconds_to_end(FIRST_STEP))
        for _ in range(cold_repeats):
            say("startup/cold-compile (up to a minute)")
            with tempfile.TemporaryDirectory() as empty:
                cold.append(seconds_to_end(COLD_COMPILE, DISAGGROUTE_CACHE=empty))
    results = [
        Result.of("startup/interpreter", "s", bare),
        Result.of("startup/import", "s", package),
        Result.of("startup/import-simulator", "s", simulator),
        Result.of("startup/first-step", "s", step),
    ]
    return [*results, *([Result.of("startup/cold-compile", "s", cold)] if cold else [])]
