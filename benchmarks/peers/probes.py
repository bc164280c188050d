"""Cases of a few requests in which both simulators can be looked at: each shows one difference of their models."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...envs import profiles
from ...envs.cluster import PS_PER_S, Cluster
from ...envs.trace import Trace
from ...policies.run import simulate
from . import dynamo
from .match import POLICY, PROFILE
from .processes import Task, run_dynamo


@dataclass(frozen=True)
class Probe:
    """One case, on one prefill instance.

    Attributes:
        shows: the difference that it shows.
        requests: arrival (s), prompt and output (tokens) of each, no two alike.
        decodes: decode instances.
        num_blocks: KV blocks of each; None: the profile's.
    """

    shows: str
    requests: tuple[tuple[float, int, int], ...]
    decodes: int = 1
    num_blocks: int | None = None

    def cluster(self) -> Cluster:
        """The cluster that serves it."""
        engine = profiles.load(str(PROFILE)).engine()
        decode = engine if self.num_blocks is None else replace(engine, num_blocks=self.num_blocks)
        return Cluster(prefill=(engine,), decode=(decode,) * self.decodes, name="probe")

    def trace(self) -> Trace:
        """Its requests."""
        arrival, prompt, output = zip(*self.requests, strict=True)
        count = len(arrival)
        none, far = np.zeros(count, np.int8), np.full(count, PS_PER_S)
        times = np.array([round(at * PS_PER_S) for at in arrival])
        return Trace(times, np.array(prompt), np.array(output), none, none, far, far)


PROBES = (
    Probe(
        "transfers from one prefill instance: in turn in ours, side by side in Dynamo's",
        ((0.0, 8000, 2), (0.0, 100, 2)),
        decodes=2,
    ),
    Probe(
        "four offers to one busy decode instance: all reserved in one pass in ours, over three in Dynamo's",
        ((0.0, 100, 40), (0.1, 100, 5), (0.1, 110, 5), (0.1, 120, 5), (0.1, 130, 5)),
    ),
    Probe(
        "a KV cache that overflows: recompute takes time in ours, and none on Dynamo's decode instances",
        ((0.0, 1500, 400), (0.001, 1500, 400), (0.2, 300, 50)),
        num_blocks=210,
    ),
)


def run_probe(python: Path, probe: Probe) -> Table:
    """First and last token of each request in both, ms.

    Raises:
        RuntimeError: Dynamo failed, or lost a request.
    """
    cluster, trace = probe.cluster(), probe.trace()
    with tempfile.TemporaryDirectory(prefix="disaggroute-peers-") as name:
        folder = Path(name)
        tables, lines, records = folder / "step-times.npz", folder / "trace.jsonl", folder / "requests.json"
        tables.write_bytes(dynamo.step_tables(cluster.prefill[0]))
        lines.write_text(dynamo.trace_lines(trace))
        per_token = profiles.load(str(PROFILE)).memory.kv_bytes_per_token
        options = dynamo.replay_options(cluster, str(tables), per_token)
        run_dynamo(python, Task(str(lines), str(lines), str(folder / "result.json"), options, str(records)))
        theirs = dynamo.read_requests(json.loads(records.read_text()), trace)
    ours = simulate(trace, cluster, POLICY).records
    rest = np.nan_to_num(theirs.delays.tpot) * (trace.output - 1)
    first = 1e3 * (trace.arrival / PS_PER_S + theirs.delays.ttft)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=probe.shows, title_justify="left")
    for heading in ("arrival", "prompt", "output", "first, Dynamo", "first, ours", "last, Dynamo", "last, ours"):
        table.add_column(heading, justify="right")
    for k, (at, prompt, output) in enumerate(probe.requests):
        times = (first[k], ours["first_token"][k] / 1e9, first[k] + 1e3 * rest[k], ours["last_token"][k] / 1e9)
        table.add_row(f"{1e3 * at:g}", f"{prompt}", f"{output}", *(f"{time:.2f}" for time in times))
    return table
