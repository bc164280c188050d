"""A results folder read back: all that tables, figures and the page need, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from .description import Description
from .runs import ASKED, NOTE, RESULTS_SCHEMA, ResultsFolder, Run, write_atomically


class Asked(BaseModel):
    """What the last evaluation of a folder asked for.

    Attributes:
        schema_version: `RESULTS_SCHEMA` at the time of writing.
        command: the command line that makes it again; empty where there is none.
        policies: name, parameters and hash of each policy, by label, in the order asked for.
        seeds: one trace each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = RESULTS_SCHEMA
    command: str
    policies: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Results:
    """Finished runs of a folder, each policy on the same seeds.

    Attributes:
        folder: where they lie.
        description: what was run.
        versions: of the program, its code and the files.
        command: the command line that makes them again; empty where there is none.
        policies: name, parameters and hash of each policy, by label.
        seeds: seeds, one trace each.
        runs: by label, in the order of the seeds.
        missing: runs that were asked for and are not here, in words; empty when all are.
    """

    folder: ResultsFolder
    description: Description
    versions: dict[str, str]
    command: str
    policies: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    runs: dict[str, tuple[Run, ...]]
    missing: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Policies, in the order asked for."""
        return tuple(self.runs)

    @property
    def single(self) -> bool:
        """Whether there is one recorded trace, whose interval comes from its own segments."""
        return self.description.single

    @property
    def title(self) -> str:
        """What was run, in one line."""
        return self.description.title(self.seeds)


def write_asked(folder: ResultsFolder, asked: Asked) -> None:
    """Notes in a folder what an evaluation is about to run, or has run.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(folder.path / ASKED, (json.dumps(asked.model_dump(), indent=1) + "\n").encode())


def read_asked(path: Path) -> Asked | None:
    """What the last evaluation of a folder asked for; None where nobody has.

    Raises:
        ValueError: it is unreadable, or of another schema.
        OSError: it cannot be read.
    """
    if not (path / ASKED).exists():
        return None
    try:
        asked = Asked.model_validate(_json(path, ASKED))
        if asked.schema_version != RESULTS_SCHEMA:
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} holds no readable description of its runs; evaluate again") from None
    return asked


def read_note(path: Path) -> dict[str, Any]:
    """What all runs of a results folder have in common.

    Raises:
        ValueError: no results folder, one of another schema, or an unreadable file.
        OSError: it cannot be read.
    """
    note = _json(path, NOTE)
    version = note.get("schema_version")
    if version != RESULTS_SCHEMA:
        raise ValueError(f"{path} has results schema {version}; this version reads {RESULTS_SCHEMA}: evaluate again")
    return note


def read_results(path: Path, asked: Asked | None = None) -> Results:
    """Reads a results folder; of an evaluation that broke off, the seeds that every started policy has finished.

    Args:
        path: the folder.
        asked: which runs; None: those that the last evaluation of the folder asked for.

    Raises:
        ValueError: no results folder, one of another schema, an unreadable file, or no finished run.
        OSError: it cannot be read.
    """
    note = read_note(path)
    words = asked.model_dump() if asked else _json(path, ASKED)
    try:
        asked = Asked.model_validate(words)
        if asked.schema_version != RESULTS_SCHEMA:
            raise ValueError
        description = Description.model_validate(note["description"])
        folder, configuration = ResultsFolder(path, str(note["key"])), dict(note["configuration"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds no readable description of its runs; evaluate again") from None
    found = {
        label: {seed: run for seed in asked.seeds if (run := folder.read(card, seed)) is not None}
        for label, card in asked.policies.items()
    }
    started = {label: runs for label, runs in found.items() if runs}
    seeds = tuple(seed for seed in asked.seeds if started and all(seed in runs for runs in started.values()))
    if not seeds:
        raise ValueError(f"{path} holds no seed that every policy has finished; let the evaluation go on")
    return Results(
        folder=folder,
        description=description,
        versions=_versions(configuration, folder),
        command=asked.command,
        policies={label: asked.policies[label] for label in started},
        seeds=seeds,
        runs={label: tuple(runs[seed] for seed in seeds) for label, runs in started.items()},
        missing=_missing(asked, started, seeds),
    )


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((path / name).read_bytes()))
    except FileNotFoundError:
        raise ValueError(f"{path} is no results folder: it has no {name}") from None
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path / name} is unreadable; evaluate again into a new folder") from None


def _versions(configuration: dict[str, Any], folder: ResultsFolder) -> dict[str, str]:
    return {
        "disaggroute": str(configuration.get("version")),
        "code": str(configuration.get("code")),
        "experiment": folder.key,
        "results schema": str(RESULTS_SCHEMA),
        "records schema": str(configuration.get("records_schema")),
    }


def _missing(asked: Asked, started: dict[str, dict[int, Run]], seeds: Sequence[int]) -> str:
    done, total = len(started) * len(seeds), len(asked.policies) * len(asked.seeds)
    if done == total:
        return ""
    absent = [label for label in asked.policies if label not in started]
    text = f"{done} of {total} runs are shown: the evaluation has not finished"
    return text + (f", and of {', '.join(absent)} no run is there" if absent else "")
