"""Runs our simulator in a process of its own, as `dynamo_process` does with Dynamo's: the same task, the same times."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ...envs import traces
from ...envs.cluster import Cluster
from ...envs.cluster_config import from_topology
from ...envs.trace import Trace
from ...policies.run import simulate
from .delays import LEVELS, Delays
from .match import POLICY, PROFILE, TOPOLOGY


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Replays a short trace, which loads everything, and then the trace."""
    cluster = from_topology(TOPOLOGY, str(PROFILE)).build()
    _summary(*_replay(_read(task["short"], cluster), cluster))
    started = time.process_time()
    trace = _read(task["trace"], cluster)
    read = time.process_time()
    delays, completed = _replay(trace, cluster)
    simulated = time.process_time()
    _summary(delays, completed)
    return {
        "start_s": started,
        "replay_s": time.process_time() - started,
        "simulation_s": simulated - read,
        "completed": completed,
        "versions": {},
    }


def _read(path: str, cluster: Cluster) -> Trace:
    return traces.read(path).to_trace(str(PROFILE), cluster)


def _replay(trace: Trace, cluster: Cluster) -> tuple[Delays, int]:
    records = simulate(trace, cluster, POLICY).records
    return Delays.of_records(records, trace), int((records["last_token"] >= 0).sum())


def _summary(delays: Delays, completed: int) -> dict[str, Any]:
    """What Dynamo's replay sums up as well."""
    values = {"ttft": delays.ttft, "tpot": delays.tpot[~np.isnan(delays.tpot)]}
    summed: dict[str, Any] = {
        name: [float(value.mean()), float(value.std()), *np.quantile(value, LEVELS).tolist()]
        for name, value in values.items()
        if len(value)
    }
    return summed | {"completed": completed}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(given["result"]).write_text(json.dumps(main(given)))
