"""Puts the same case to vLLM's scheduler and to the simulator, and says where they part."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from disaggroute.envs.cluster import Cluster, EngineSpec
from disaggroute.envs.records import DECODE_VIEW, PREFILL_VIEW

from ..differential.cases import Case, random_case

PROGRAM = Path(__file__).with_name("vllm_scheduler.py")

COLUMNS = (
    "prefill_start",
    "prefill_end",
    "reserve",
    "transfer_start",
    "transfer_end",
    "first_token",
    "last_token",
    "max_stall",
    "generated",
    "preemptions",
)
"""Of the records: all that the engines decide."""

POLLED = ("used", "running", "waiting")
"""Of the views: what an engine reports of itself."""

Answer = dict[str, Any]


class SchedulerProcess:
    """vLLM's scheduler in a process of the engines' Python; `with` starts it and ends it."""

    def __init__(self, python: Path, model: Path, log: Path) -> None:
        self._command = [str(python), str(PROGRAM), str(model)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SchedulerProcess:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def answer(self, case: Case) -> Answer:
        """What vLLM does with a case.

        Returns:
            requests: COLUMNS of each request; polls: POLLED of each instance at each arrival.

        Raises:
            RuntimeError: vLLM failed, or found no end.
        """
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(as_json(case)), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the process of vLLM's scheduler has ended; it wrote {self._log.read_text()[-2000:]}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{case.label}: {answer['error']}")
        return answer


def vllm_case(seed: int) -> Case:
    """A random case of what vLLM can do: a third of them aggregated, half of them with tiny times, no failures."""
    return random_case(seed, tiny=seed % 2 == 0, aggregated=seed % 3 == 0, failures=False, first_token="decode")


def as_json(case: Case) -> dict[str, Any]:
    """A case in words that need no package: instances by global index, times in ps."""
    trace, cluster = case.trace, case.cluster
    prefill, decode = case.assignment
    columns = (trace.arrival, trace.prompt, trace.output, prefill, decode + len(cluster.prefill))
    return {
        "engines": [_engine(engine, role) for engine, role in zip(cluster.instances, _roles(cluster), strict=True)],
        "latency": [] if cluster.aggregated else cluster.latency_matrix().tolist(),
        "poll_interval": cluster.poll_interval,
        "requests": np.stack(columns, axis=1).tolist(),
    }


def first_difference(records: npt.NDArray[Any], views: npt.NDArray[np.int64], answer: Answer) -> str | None:
    """Where vLLM first does something else than the simulator, in words, or None.

    Args:
        records: (N,) of the simulator.
        views: (N, instances, 3) POLLED at each arrival, of the simulator.
        answer: of vLLM.
    """
    if len(answer["requests"]) != len(records):
        return f"{len(records)} records, not {len(answer['requests'])} as in vLLM"
    wrong: list[tuple[int, int, str]] = []
    for i, told in enumerate(answer["requests"]):
        for name in COLUMNS:
            ours, theirs = int(records[name][i]), told[name]
            if ours != theirs:
                instants = [t for t in (ours, theirs) if t >= 0 and records.dtype[name].itemsize == 8]
                when = min(instants, default=int(records["last_token"][i]))
                wrong.append((when, i, f"{name} is {ours}, not {theirs} as in vLLM"))
    if wrong:
        _, first, _ = min(wrong)
        parts = ", ".join(text for _, i, text in wrong if i == first)
        others = len({i for _, i, _ in wrong}) - 1
        return f"request {first}: {parts} (and {others} other requests differ)"
    polls = np.array(answer["polls"], np.int64).reshape(views.shape)
    if (polls != views).any():
        arrival, instance, column = np.argwhere(polls != views)[0].tolist()
        ours, theirs = views[arrival, instance, column], polls[arrival, instance, column]
        return f"arrival {arrival}: {POLLED[column]} of instance {instance} is {ours}, not {theirs} as in vLLM"
    return None


def polled(
    cluster: Cluster, prefill_views: npt.NDArray[np.int64], decode_views: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """(N, instances, 3): POLLED of all instances, from what the router saw at each arrival."""
    prefill = prefill_views[..., [PREFILL_VIEW.index(name) for name in POLLED]]
    decode = decode_views[..., [DECODE_VIEW.index(name) for name in POLLED]]
    return decode if cluster.aggregated else np.concatenate([prefill, decode], axis=1)


def _roles(cluster: Cluster) -> list[str]:
    return ["mixed"] * len(cluster.mixed) + ["prefill"] * len(cluster.prefill) + ["decode"] * len(cluster.decode)


def _engine(engine: EngineSpec, role: str) -> dict[str, Any]:
    values = {field.name: getattr(engine, field.name) for field in fields(engine)}
    return values | {"role": role, "batch": engine.batch.tolist()}
