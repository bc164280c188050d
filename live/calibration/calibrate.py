"""A calibration from the first request to the last: gates, then rounds of measurements."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...envs.atomic_file import write_atomically
from ...envs.progress import OnProgress
from ..cluster_file import LiveCluster
from ..engine import Engine
from ..gate.gates import Tell, gates_of
from ..gate.report import GateReport
from ..gate.token_counts import check_context
from ..http_client import Unreachable
from ..probe import Probe
from ..reply import Failed
from .fits import Sizes
from .measurement import MeasurementFile
from .measuring import measure
from .plan import FEWEST_ROUNDS, Effort, Task, tasks_of

SCHEMA_VERSION = 1

MEASUREMENTS, PLAN, GATES = "measurements.csv", "calibration.json", "gates.json"
"""Files of a calibration's folder."""


class ShutGate(RuntimeError):
    """A gate did not open, so nothing was measured."""


@dataclass
class Measured:
    """What was measured.

    Attributes:
        file: the measurements.
        engines: as they were met.
        sizes: what fits take as given.
        rounds: of the plan, all of which were gone through.
        reused: measurements of an earlier, interrupted run.
    """

    file: MeasurementFile
    engines: list[Engine]
    sizes: Sizes
    rounds: int
    reused: int


def open_folder(folder: Path, cluster: LiveCluster, effort: Effort, *, force: bool) -> MeasurementFile:
    """Begins a calibration in a folder, or goes on with the one that was interrupted there.

    Args:
        folder: for all its files.
        cluster: what is measured.
        effort: how much.
        force: what was measured there before is thrown away.

    Raises:
        ValueError: the folder holds something else, or measurements of other engines.
        OSError: it cannot be written.
    """
    note, path = folder / PLAN, folder / MEASUREMENTS
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "cluster": cluster.name, "model": cluster.model}
    content["engines"] = [cluster.engine_name(role, k) for role, k, _ in cluster.engines()]
    content |= {"time_scale": cluster.time_scale, "longest_prompt": effort.longest}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if force:
        path.unlink(missing_ok=True)
    elif note.exists():
        if note.read_bytes() != text.encode():
            raise ValueError(f"out is {folder}, which holds a calibration of something else; name another, or --force")
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"out is {folder}, which holds other files; name a new or empty folder, or say --force")
    write_atomically(note, text.encode())
    file = MeasurementFile(path)
    strange = {row.engine for row in file.rows} | {row.peer for row in file.rows} - {""}
    strange -= set(content["engines"])
    if strange:
        raise ValueError(f"{path} has measurements of {min(strange)}, which {cluster.name} does not have; say --force")
    return file


async def measure_cluster(
    cluster: LiveCluster, file: MeasurementFile, effort: Effort, *, gates: bool, tell: Tell, on_progress: OnProgress
) -> Measured:
    """Opens the gates and measures what is not in the file yet.

    Args:
        cluster: engines that listen, and that nobody else uses.
        file: gets the measurements.
        effort: how much.
        gates: whether they are held to the gates first.
        tell: told what goes on.
        on_progress: told the seconds that are done, and all.

    Raises:
        ShutGate: a gate did not open; the report lies beside the measurements.
        Busy: somebody else uses the engines.
        Failed: an engine did not answer as it should.
        Unreachable: one does not answer at all.
        ValueError: the engines' context is too short.
    """
    async with Probe(cluster) as probe:
        check_context(probe)
        await probe.wait_idle()
        rounds = tasks_of(probe, effort)
        done, reused = file.done, len(file.rows)
        left = [[task for task in tasks if task.key not in done] for tasks in rounds]
        if any(left) and gates:
            report = await gates_of(probe, tell)
            write_atomically(file.path.with_name(GATES), report.json_bytes())
            _check(report)
        elif any(left):
            await _introduce(probe)
        went = await _go_through(probe, file, left, effort, tell, on_progress)
        await probe.wait_idle()
        holder = min(probe.whole_engines, key=lambda engine: engine.blocks)
        reader = (probe.prefill or probe.mixed)[0]
        sizes = Sizes(reader.spec(cluster).max_num_batched_tokens, holder.block_size)
        return Measured(file, probe.engines, sizes, went, reused)


def _check(report: GateReport) -> None:
    if not report.passed:
        raise ShutGate(f"{report.cluster} does not pass its gates, so nothing is measured: {report.problems[0]}")


async def _introduce(probe: Probe) -> None:
    """First transfers set up connections and are no measure of the later ones."""
    for prefill, decode in probe.pairs:
        await probe.two_legs(prefill, decode, probe.prompt(16), 1, stream=False)


async def _go_through(
    probe: Probe,
    file: MeasurementFile,
    rounds: list[list[Task]],
    effort: Effort,
    tell: Tell,
    on_progress: OnProgress,
) -> int:
    """Measures round after round; returns how many. The time that was allowed ends the last one, never the first."""
    total = sum(task.expected_s for tasks in rounds for task in tasks)
    done, start = 0.0, probe.seconds()
    for number, tasks in enumerate(rounds):
        if tasks and number >= FEWEST_ROUNDS and probe.seconds() - start > effort.seconds:
            return number
        for task in tasks:
            try:
                row = await measure(probe, task)
            except (Failed, Unreachable) as error:
                raise Failed(f"{error}; what was measured is kept, and the same command goes on from it") from None
            if row is None:
                tell(f"{task.engine.name}: {task.sequences} requests of {task.prompt} tokens never ran together")
            else:
                file.add(row)
            done += task.expected_s
            on_progress(round(done), max(1, round(total)))
    return len(rounds)
