"""A training run: one configuration and training seed, in a folder of its own, resumed from its checkpoints.

    experiment.json       configuration and key; another configuration is refused
    checkpoints/          the last two states
    learning.csv, .png    the learning curve
    tensorboard/          the same for TensorBoard
    candidates/           policies that the choice is made among

No file but TensorBoard's holds a time of day: a killed and resumed run ends in the same bytes as one left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...policies.policy import Policy
from ...policies.policy_file import PolicyFile
from ..executors.executor import Executor
from ..executors.process import ProcessExecutor
from ..runs import ResultsFolder, write_atomically
from .checkpoint import read_checkpoint, write_checkpoint
from .learning_log import LearningLog

KEPT = 2
"""Checkpoints that stay: the last one, and one before it should that be damaged."""

OnProgress = Callable[[int, int], None]
"""Told units of the budget done, and of how many."""


@dataclass(frozen=True)
class Candidate:
    """A policy that may be chosen.

    Attributes:
        label: where training found it, such as `generation 40`.
        policy: the policy.
    """

    label: str
    policy: Policy


@dataclass
class TrainingRun:
    """What a method gets to train in; use `TrainingRun.open`.

    Attributes:
        folder: the folder.
        seed: training seed: of everything random.
        budget: units in all.
        device: where torch computes.
        workers: runs episodes.
        say: told what takes its time.
    """

    folder: ResultsFolder
    seed: int
    budget: int
    device: str
    workers: Executor
    say: Callable[[str], None]
    _tell: OnProgress
    _log: LearningLog
    _latest: tuple[int, bytes] | None = field(default=None)

    @classmethod
    def open(
        cls,
        path: Path,
        content: Mapping[str, Any],
        seed: int,
        *,
        workers: Executor | None = None,
        say: Callable[[str], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> TrainingRun:
        """Opens the folder of a run, and creates it if need be.

        Args:
            path: the folder.
            content: of the configuration (`TrainingConfig.content`).
            seed: training seed.
            workers: runs episodes; by default this process alone.
            say: told what takes its time.
            on_progress: told how far it is.

        Raises:
            ValueError: the folder is of another configuration or seed, or its last checkpoint or its learning curve is
                damaged, or of another version.
            OSError: it cannot be read or written.
        """
        folder = ResultsFolder.open(path, {**content, "training_seed": seed})
        found = sorted((path / "checkpoints").glob("*.checkpoint"))
        latest = read_checkpoint(found[-1], key=folder.key) if found else None
        log, tell = LearningLog(path, latest[0] if latest else 0), say or (lambda _: None)
        if not log.for_tensorboard:
            tell("TensorBoard is not installed; the learning curve is in learning.csv and learning.png alone")
        return cls(
            folder=folder,
            seed=seed,
            budget=int(content["budget"]),
            device=str(content["device"]),
            workers=workers or ProcessExecutor(1),
            say=tell,
            _tell=on_progress or (lambda done, total: None),
            _log=log,
            _latest=latest,
        )

    def latest(self) -> tuple[int, bytes] | None:
        """Step and content of the last checkpoint; None at the beginning."""
        return self._latest

    def checkpoint(self, step: int, content: bytes) -> None:
        """Stores the state after `step` units of the budget; rows up to there are stored before it.

        Raises:
            OSError: it cannot be written.
        """
        self._log.write()
        places = self.folder.path / "checkpoints"
        write_checkpoint(places / f"{step:012d}.checkpoint", content, key=self.folder.key, step=step)
        self._latest = step, content
        for old in sorted(places.glob("*.checkpoint"))[:-KEPT]:
            with suppress(OSError):
                old.unlink()

    def log(self, step: int, scalars: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """Adds a row to the learning curve.

        Args:
            step: units of the budget done; grows, and is at most that of the next checkpoint.
            scalars: by name, the same whenever this seed is trained: no speeds, no times.
            more: for TensorBoard alone, such as speeds.

        Raises:
            OSError: it cannot be written.
        """
        self._log.add(step, scalars, more)

    def progress(self, done: int) -> None:
        """Tells how many units of the budget are done."""
        self._tell(done, self.budget)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The rows so far, each with its `step`."""
        return list(self._log.rows)

    def finish(self, candidates: Iterable[Candidate]) -> dict[str, Path]:
        """Writes the candidates as policy files, and the learning curve.

        Returns:
            The files by label.

        Raises:
            OSError: one cannot be written.
        """
        self._log.close()
        files = {}
        for candidate in candidates:
            name = re.sub(r"[^a-z0-9]+", "-", candidate.label.lower())
            path = self.folder.path / "candidates" / f"{name}.yaml"
            text = PolicyFile.of(candidate.policy, {"training_seed": self.seed, "found": candidate.label}).yaml()
            write_atomically(path, text.encode())
            files[candidate.label] = path
        return files
