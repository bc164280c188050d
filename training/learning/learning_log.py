"""The learning curve: scalars by step, as a table, as a picture and for TensorBoard.

The table is what counts: it holds no time of day, and what was written after the last checkpoint is cut off when a
run goes on. TensorBoard's events are written anew from it then, so that no step is there twice.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...envs.atomic_file import write_error
from ..runs import write_atomically

SECONDS = 2.0
"""Between two writings of the table; a checkpoint writes it in any case."""


class LearningLog:
    """Rows of scalars in `learning.csv`, and the same as TensorBoard events in `tensorboard/`.

    Args:
        folder: of the run.
        step: of the checkpoint from which it goes on; later rows are forgotten.

    Raises:
        ValueError: the table is unreadable.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._table, self._events = folder / "learning.csv", folder / "tensorboard"
        self.rows = [row for row in _read(self._table) if row["step"] <= step]
        self._written = 0.0
        shutil.rmtree(self._events, ignore_errors=True)
        self._writer = _event_writer(self._events)
        for row in self.rows:
            self._to_tensorboard(int(row["step"]), {name: x for name, x in row.items() if name != "step"})

    @property
    def for_tensorboard(self) -> bool:
        """Whether TensorBoard is installed."""
        return self._writer is not None

    def add(self, step: int, scalars: Mapping[str, float], more: Mapping[str, float] | None = None) -> None:
        """A row.

        Args:
            step: units of the budget done; grows.
            scalars: by name; the same in every run with the same seed.
            more: for TensorBoard alone, such as speeds.

        Raises:
            OSError: the table cannot be written.
        """
        values = {name: float(value) for name, value in scalars.items()}
        self.rows.append({"step": step, **values})
        self._to_tensorboard(step, {**values, **(more or {})})
        if time.monotonic() - self._written > SECONDS:
            self.write()

    def write(self) -> None:
        """Writes the table, and flushes the events.

        Raises:
            OSError: it cannot be written.
        """
        text = io.StringIO()
        columns = list(dict.fromkeys(name for row in self.rows for name in row)) or ["step"]
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self._table, text.getvalue().encode())
        if self._writer is not None:
            self._writer.flush()
        self._written = time.monotonic()

    def close(self) -> None:
        """Writes what is left."""
        self.write()
        if self._writer is not None:
            self._writer.close()

    def _to_tensorboard(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._writer is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
        self._writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))


def _event_writer(folder: Path) -> _EventWriter | None:
    """TensorBoard's own format, which needs no torch; None where TensorBoard is not installed."""
    try:
        return _EventWriter(folder)
    except ImportError:
        return None


class _EventWriter:
    """A file of events. TensorBoard's writer has a thread, whose complaints nobody could catch.

    Args:
        folder: where it lies.

    Raises:
        ImportError: TensorBoard is not installed.
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.0"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter(self._path.open("wb"))
        except OSError as error:
            raise write_error(error, self._path) from error
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self.flush()

    def add_event(self, event: Any) -> None:
        """Adds an event."""
        self._try(lambda: self._records.write(event.SerializeToString()))

    def flush(self) -> None:
        """Writes what was added."""
        self._try(self._records.flush)

    def close(self) -> None:
        """Writes what was added, and closes the file."""
        self._try(self._records.close)

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            raise write_error(error, self._path) from error


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        return [
            {name: int(x) if name == "step" else float(x) for name, x in row.items() if x != ""} for row in table
        ]
    except (ValueError, TypeError, KeyError, csv.Error):
        raise ValueError(f"{path} is not a readable learning curve; delete the folder and train again") from None
