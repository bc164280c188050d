"""One trace through Dynamo's replay and through ours, in turn: how fast, and how far apart."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...envs import profiles, traces
from ...policies.run import simulate
from ..machine import Machine
from ..measurement import Result, at_least, pinned
from . import dynamo
from .delays import Delays, Distance
from .dynamo import Replay
from .match import POLICY, PROFILE, Match, without_recompute
from .processes import Task, Times, run_dynamo, run_ours
from .report import PHASES, VARIANTS, Comparison, Peers

SHORT = 16
"""Requests of the trace that is replayed before the clock starts."""

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Compared:
    """What a comparison found.

    Attributes:
        report: numbers.
        theirs: delays of Dynamo's run.
        ours: delays of our runs, by variant.
    """

    report: Peers
    theirs: Delays
    ours: dict[str, Delays]


def compare(python: Path, *, requests: int, load: float, repeats: int, seed: int, say: Say) -> Compared:
    """Makes the trace, measures both in turn, and compares the delays of their requests.

    Args:
        python: of Dynamo's environment.
        requests: in the trace.
        load: share of the cluster's capacity.
        repeats: processes of each, in turn.
        seed: of the trace.
        say: told what is being done.

    Raises:
        ValueError: a number out of range.
        RuntimeError: a process failed, or did not serve every request.
    """
    at_least("repeats", repeats)
    match = Match.make(requests, load, seed)
    say(f"peers: {requests:,} requests at {match.rate:.4g} requests/s, {load:.0%} of {match.capacity:.4g}")
    with tempfile.TemporaryDirectory(prefix="disaggroute-peers-") as name:
        theirs, ours = _tasks(match, Path(name))
        rounds: list[tuple[Times, Times]] = []
        with pinned():
            # The first pair finds no file in the system's cache, so it is not counted.
            for turn in range(-1, repeats):
                say(f"peers: {'loading both' if turn < 0 else f'round {turn + 1} of {repeats}'}")
                pair = run_dynamo(python, theirs), run_ours(ours)
                _check(pair, requests)
                if turn >= 0:
                    rounds.append(pair)
        say("peers: the delays of every request")
        records = Path(name, "requests.json")
        times = run_dynamo(python, Task(theirs.short, theirs.trace, theirs.result, theirs.options, str(records)))
        replay = dynamo.read_requests(json.loads(records.read_text()), match.trace)
    runs = variants(match, replay)
    report = Peers(
        machine=Machine.this(),
        versions=times.versions,
        requests=requests,
        capacity=match.capacity,
        rate=match.rate,
        seed=seed,
        results=tuple(speeds(rounds, requests)),
        comparisons={name: _comparison(replay, *run) for name, run in runs.items()},
    )
    return Compared(report, replay.delays, {name: delays for name, (delays, _) in runs.items()})


def variants(match: Match, replay: Replay) -> dict[str, tuple[Delays, int]]:
    """Our runs that are compared with Dynamo's, and their preemptions, by the names in `VARIANTS`."""
    routed = replay.prefill, replay.decode
    records = {
        "own": simulate(match.trace, match.cluster, POLICY).records,
        "same": simulate(match.trace, match.cluster, assignment=routed).records,
        "free": simulate(match.trace, without_recompute(match.cluster), assignment=routed).records,
    }
    return {name: _delays(records[name], match) for name in VARIANTS}


def speeds(rounds: list[tuple[Times, Times]], requests: int) -> list[Result]:
    """Requests per CPU second of both, the ratio of each round, and the CPU time of their starts."""
    results = []
    for phase in PHASES:
        theirs, ours = ([requests / getattr(pair[k], f"{phase}_s") for pair in rounds] for k in (0, 1))
        ratios = [mine / other for other, mine in zip(theirs, ours, strict=True)]
        results += [
            Result.of(f"peers/dynamo/{phase}", "requests/s", theirs),
            Result.of(f"peers/disaggroute/{phase}", "requests/s", ours),
            Result.of(f"peers/ratio/{phase}", "×", ratios),
        ]
    for k, name in enumerate(("dynamo", "disaggroute")):
        results.append(Result.of(f"peers/{name}/start-up", "s", [pair[k].start_s for pair in rounds]))
    return results


def _tasks(match: Match, folder: Path) -> tuple[Task, Task]:
    """The files of both, and what each is to do with them."""
    tables = folder / "step-times.npz"
    tables.write_bytes(dynamo.step_tables(match.cluster.decode[0]))
    options = dynamo.replay_options(
        match.cluster, str(tables), profiles.load(str(PROFILE)).memory.kv_bytes_per_token
    )
    paths = {name: folder / f"{name}.jsonl" for name in ("short", "trace")}
    paths["short"].write_text(dynamo.trace_lines(match.trace, SHORT))
    paths["trace"].write_text(dynamo.trace_lines(match.trace))
    theirs = Task(str(paths["short"]), str(paths["trace"]), str(folder / "dynamo.json"), options)
    whole = traces.write(match.trace, folder / "trace.csv")
    rows = whole.read_text().splitlines(keepends=True)
    short = folder / "short.csv"
    short.write_text("".join(rows[: SHORT + 1]))
    return theirs, Task(str(short), str(whole), str(folder / "ours.json"), {})


def _check(pair: tuple[Times, Times], requests: int) -> None:
    for name, times in zip(("Dynamo", "disaggroute"), pair, strict=True):
        if times.completed != requests:
            raise RuntimeError(f"{name} completed {times.completed} of {requests} requests")


def _delays(records: npt.NDArray[np.void], match: Match) -> tuple[Delays, int]:
    return Delays.of_records(records, match.trace), int(records["preemptions"].sum())


def _comparison(replay: Replay, delays: Delays, preemptions: int) -> Comparison:
    return Comparison(
        ttft=Distance.between(replay.delays.ttft, delays.ttft),
        tpot=Distance.between(replay.delays.tpot, delays.tpot),
        preemptions=(replay.preemptions, preemptions),
    )
