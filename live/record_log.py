"""Records of the router: a line of JSON per request, in the order in which they ended.

The first line of a file says what the lines are. A line is written as soon as its request has ended, so what is in the
file survives a crash; a half line at the end of a killed router is dropped by `read`. A full disk loses nothing: lines
wait in memory until there is room again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

SCHEMA_VERSION = 1

MOST_WAITING = 1_000_000
"""Lines that wait for room on the disk; beyond it the oldest are given up, which is counted."""

RETRY_S = 1.0

log = logging.getLogger(__name__)


class RecordLog:
    """Appends records to a file.

    Args:
        path: of the file; None keeps nothing.
        header: what is said of all records, in the first line.

    Raises:
        OSError: the file cannot be created.
        ValueError: it holds something else.
    """

    def __init__(self, path: Path | None, header: dict[str, Any]) -> None:
        self.path = path
        self.written = 0
        """Lines in the file that this log has written."""
        self.lost = 0
        """Lines that were given up."""
        self.problem = ""
        """Why lines wait."""
        self._waiting: deque[bytes] = deque()
        self._part = b""
        self._retry_at = 0.0
        self._file = -1
        if path is not None:
            self._open(path, header)

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.exists() and path.stat().st_size > 0
        if known:
            _check_header(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if known:
            self._end_half_line(path)
        line = {"schema_version": SCHEMA_VERSION, "kind": "disaggroute-live-records", **header}
        self._waiting.append(orjson.dumps(line) + b"\n")
        self.flush()

    def _end_half_line(self, path: Path) -> None:
        """A router that was killed while it wrote may have left a line without an end."""
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._part = b"\n"

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._waiting) + bool(self._part)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record."""
        if self._file < 0:
            return
        self._waiting.append(orjson.dumps(record) + b"\n")
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1
        if time.monotonic() >= self._retry_at:
            self.flush()

    def flush(self) -> bool:
        """Writes what waits; whether all is written."""
        if self._file < 0:
            return True
        try:
            while self._part or self._waiting:
                line = self._part or self._waiting[0]
                done = os.write(self._file, line)
                if not self._part:
                    self._waiting.popleft()
                self._part = line[done:]
                if not self._part and line != b"\n":
                    self.written += 1
        except OSError as error:
            if not self.problem:
                log.error("cannot write records to %s: %s; they wait in memory", self.path, error.strerror)
            self.problem = error.strerror or str(error)
            self._retry_at = time.monotonic() + RETRY_S
            return False
        if self.problem:
            log.warning("records are written to %s again", self.path)
        self.problem = ""
        return True

    def close(self) -> bool:
        """Writes what waits and closes the file; whether all was written."""
        done = self.flush()
        if self._file >= 0:
            try:
                os.fsync(self._file)
            except OSError:
                done = False
            os.close(self._file)
            self._file = -1
        return done


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        first = file.readline()
    try:
        known = orjson.loads(first)
        fits = known["kind"] == "disaggroute-live-records" and known["schema_version"] == SCHEMA_VERSION
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise ValueError(f"records is {path}, which holds something else; name another file")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, headers included (they have `kind`); half lines are left out.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else.
    """
    _check_header(path)
    with path.open("rb") as file:
        for line in file:
            try:
                record = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
