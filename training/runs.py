"""The results folder: runs keyed by content, written atomically, resumed.

    experiment.json                     what all runs of the folder have in common, its key, and a description
    evaluation.json                     which policies and seeds were asked for last
    runs/<policy>-<hash>/<seed>.json    summary of one run
    records/<policy>-<hash>/<seed>.parquet   its records, where they are kept
    live/<policy>-<hash>/<seed>/        on a live cluster: what client and router wrote, attempt by attempt
    summary.csv                         one row per run
    records.parquet                     records of the first seed, all policies
    *.png, report.html                  figures, and the page that shows them (`report`)

No file holds a time of day or depends on the order in which runs finished: a killed and resumed evaluation
ends in the same bytes as one that was left alone.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..envs.atomic_file import append_line as append_line
from ..envs.atomic_file import atomic_file as atomic_file
from ..envs.atomic_file import write_atomically as write_atomically
from ..envs.atomic_file import write_error
from .summary import Summary

if TYPE_CHECKING:
    import pyarrow as pa

NOTE = "experiment.json"
"""File that says what all runs of a folder have in common."""

ASKED = "evaluation.json"
"""File that says which policies and seeds the last evaluation of a folder asked for."""

LOCK = ".lock"
"""Empty file in the folder of a run that one process drives at a time."""

RESULTS_SCHEMA = 2
"""Version of the layout and the columns of a results folder; stored in every file."""

Json = Mapping[str, Any]


class Run(BaseModel):
    """Summary of one policy on one trace, and what it belongs to.

    Attributes:
        schema_version: `RESULTS_SCHEMA` at the time of writing.
        experiment: key of the experiment's configuration.
        label: the policy as it was asked for.
        policy: its name, parameters and hash.
        seed: of trace, policy and predictor.
        summary: the numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    schema_version: int
    experiment: str
    label: str
    policy: dict[str, Any]
    seed: int
    summary: Summary


def write_files(folder: Path, files: Mapping[str, bytes], others: Iterable[str]) -> list[Path]:
    """Writes the files of a report, each whole or not at all.

    Args:
        folder: where to.
        files: content by name.
        others: names that a report may have: those that this one lacks are removed, since those of an earlier run would
            show other numbers.

    Returns:
        The files, in their order.

    Raises:
        OSError: a file cannot be written.
    """
    for name in others:
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def fingerprint(configuration: Json) -> str:
    """Hash of a JSON-able configuration: 16 hex digits of SHA-256 over its canonical form."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ResultsFolder:
    """One experiment's folder.

    Attributes:
        path: the folder.
        key: fingerprint of the experiment's configuration.
    """

    path: Path
    key: str

    @classmethod
    def open(cls, path: Path, configuration: Json, description: Json | None = None) -> ResultsFolder:
        """Opens a folder for an experiment, and creates it if need be.

        Args:
            path: the folder.
            configuration: JSON-able; all that the runs have in common.
            description: JSON-able; the same for people, stored beside it.

        Raises:
            ValueError: the folder holds runs of another configuration, or something else.
            OSError: it cannot be read or written.
        """
        folder = cls(path, fingerprint(configuration))
        note = path / NOTE
        try:
            strangers = path.exists() and any(not p.name.startswith(".") for p in path.iterdir())
            # After the look at the others: they may be of a process that has just begun the same.
            known = note.read_bytes() if note.exists() else None
        except OSError as error:
            raise write_error(error, path) from error
        if known is None:
            if strangers:
                raise ValueError(f"out is {path}, which holds other files; name a new or empty folder")
            content = {"schema_version": RESULTS_SCHEMA, "key": folder.key, "configuration": configuration}
            content["description"] = description or {}
            write_atomically(note, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
        else:
            folder._check(known, configuration)
        folder.sweep()
        return folder

    @classmethod
    @contextmanager
    def opened(cls, path: Path, configuration: Json, description: Json | None = None) -> Iterator[ResultsFolder]:
        """Opens a folder as `open`; if what is done in it fails before it has left anything, the folder goes too.

        Only a folder that this call has made goes, and only while no other process has it open this way.
        """
        missing = [each for each in (path, *path.parents) if not os.path.exists(each)]
        fresh = not os.path.exists(path / NOTE)
        folder = cls.open(path, configuration, description)
        lock = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # Not every file system has locks.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield folder
        except Exception:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if fresh and folder._holds_nothing():
                    folder._remove(missing)
            raise
        finally:
            os.close(lock)

    def _holds_nothing(self) -> bool:
        """Whether it says only what was to be run: no file of a run, and none of somebody else's."""
        files = (each for each in self.path.rglob("*") if not each.is_dir())
        notes = (self.path / NOTE, self.path / ASKED)
        return all(each in notes or each.name == LOCK or each.name.endswith(".tmp") for each in files)

    def _remove(self, folders: Iterable[Path]) -> None:
        """Removes all that is in it, and these folders, if they are empty then.

        Raises:
            OSError: something cannot be removed.
        """
        for each in sorted(self.path.rglob("*"), reverse=True):  # What is inside comes first.
            if each.is_dir():
                each.rmdir()
            else:
                each.unlink()
        for each in folders:
            each.rmdir()

    def _check(self, known: bytes, configuration: Json) -> None:
        try:
            content = json.loads(known)
            key, other = content["key"], dict(content["configuration"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{self.path}/{NOTE} is unreadable; name another folder") from None
        if key != self.key:
            names = sorted(
                name for name in {*other, *configuration} if other.get(name) != configuration.get(name)
            )
            raise ValueError(
                f"out is {self.path}, which holds runs of another configuration (other {', '.join(names)}); "
                "name another folder"
            )

    def sweep(self) -> None:
        """Removes what a killed process left half-written."""
        for left in self.path.rglob(".*.tmp"):
            owner = left.name.split(".")[-2]
            if owner.isdigit() and not _alive(int(owner)):
                with suppress(OSError):
                    left.unlink()

    def run_path(self, policy: Json, seed: int) -> Path:
        """Where the summary of a run lies."""
        return self.path / "runs" / _slug(policy) / f"{seed}.json"

    def records_path(self, policy: Json, seed: int) -> Path:
        """Where the records of a run lie."""
        return self.path / "records" / _slug(policy) / f"{seed}.parquet"

    def place(self, backend: str, policy: Json, seed: int) -> Path:
        """Where a backend may keep what a run needs to outlive a crash."""
        return self.path / backend / _slug(policy) / str(seed)

    def read(self, policy: Json, seed: int, records: bool = False) -> Run | None:
        """The stored run, or None when it is still to do.

        Args:
            policy: its name, params and hash.
            seed: of the run.
            records: whether a run without stored records counts as still to do.

        Raises:
            ValueError: the file is unreadable or of another configuration.
        """
        path = self.run_path(policy, seed)
        if not path.exists() or (records and not self.records_path(policy, seed).exists()):
            return None
        run = _run(path)
        if run.experiment != self.key or run.schema_version != RESULTS_SCHEMA:
            raise ValueError(f"{path} belongs to another configuration; name another folder")
        return run

    def write(self, run: Run, records: bytes | None = None) -> None:
        """Stores a run; its records, a Parquet file, first, so that a stored summary implies them.

        Raises:
            OSError: it cannot be written.
        """
        if records is not None:
            write_atomically(self.records_path(run.policy, run.seed), records)
        text = json.dumps(json.loads(run.model_dump_json()), indent=1) + "\n"
        write_atomically(self.run_path(run.policy, run.seed), text.encode())

    def runs(self) -> list[Run]:
        """All stored runs, by policy and seed.

        Raises:
            ValueError: a file is unreadable.
        """
        found = []
        for path in sorted((self.path / "runs").glob("*/*.json")):
            found.append(_run(path))
        return sorted(found, key=lambda run: (run.label, run.policy["hash"], run.seed))

    def write_summary(self, runs: Iterable[Run]) -> Path:
        """Writes `summary.csv`: one row per run, in the order given.

        Raises:
            OSError: it cannot be written.
        """
        rows = [
            {"schema_version": RESULTS_SCHEMA, "experiment": run.experiment, "policy": run.label}
            | {"policy_hash": run.policy["hash"], "seed": run.seed}
            | run.summary.row()
            for run in runs
        ]
        text = io.StringIO()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path = self.path / "summary.csv"
        write_atomically(path, text.getvalue().encode())
        return path

    def write_records(self, runs: Iterable[Run]) -> Path | None:
        """Writes `records.parquet`: the stored records of these runs, one after the other.

        Returns:
            The path, or None when none of the runs has records.

        Raises:
            ValueError: stored records are unreadable.
            OSError: it cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = [self.records_path(run.policy, run.seed) for run in runs]
        whole: pa.Table | None = None
        for path in paths:
            if path.exists():
                try:
                    with path.open("rb") as file:
                        table = pq.read_table(file)
                    whole = table if whole is None else pa.concat_tables([whole, table], promote_options="default")
                except (pa.ArrowException, OSError):
                    raise ValueError(f"{path} holds no readable records; delete it and start again") from None
        if whole is None:
            return None
        path = self.path / "records.parquet"
        write_atomically(path, parquet_bytes(whole))
        return path


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file; the same table gives the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _run(path: Path) -> Run:
    try:
        return Run.model_validate_json(path.read_bytes())
    except ValidationError:
        raise ValueError(f"{path} is not a readable run; delete it and start again") from None


def _slug(policy: Json) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(policy["name"]))
    return f"{name}-{str(policy['hash'])[:12]}"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # Somebody else's.
    return not _ended(process)


def _ended(process: int) -> bool:
    """Whether it has ended and nobody has asked how, which the first process of a container may never do."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
