"""Records of the router: a line of JSON per request, in the order in which they ended.

The first line of a file says what the lines are. A line is written as soon as its request has ended, so what is in the
file survives a crash; a half line at the end of a killed router is dropped by `read`. A full disk loses nothing: lines
wait in memory until there is room again.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

SCHEMA_VERSION = 1

KIND = "disaggroute-live-records"

START = orjson.dumps({"schema_version": SCHEMA_VERSION, "kind": KIND})[:-1]
"""How every file begins."""

MOST_WAITING = 1_000_000
"""Lines that wait for room on the disk; beyond it the oldest are given up, which is counted."""

LINES_AT_ONCE = 4_096

LONGEST_HEADER = 1 << 22
"""Bytes."""

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
        self.lost = 0
        """Lines that were given up."""
        self.problem = ""
        """Why lines wait."""
        self._given = 0
        self._waiting: deque[bytes] = deque()
        self._part = b""
        """What is being written: lines that have left the queue, the first of them perhaps without its beginning."""
        self._retry_at = 0.0
        self._file = -1
        if path is not None:
            self._open(path, header)

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = _found(path) if path.is_file() else "nothing"  # a pipe or a device is not read
        if found == "something else":
            raise ValueError(f"records is {path}, which holds something else; name another file")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if found == "half a header":
            os.ftruncate(self._file, 0)
        line = orjson.dumps({"schema_version": SCHEMA_VERSION, "kind": KIND, **header})
        # A router that was killed while it wrote may have left a line without an end.
        self._part = (b"\n" if found == "records" and not _ends(path) else b"") + line + b"\n"
        self._given = 1
        self.flush()

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._waiting) + self._part.lstrip(b"\n").count(b"\n")

    @property
    def written(self) -> int:
        """Lines in the file that this log has written, its header included."""
        return self._given - self.lost - self.waiting

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record."""
        if self._file < 0:
            return
        self._waiting.append(orjson.dumps(record) + b"\n")
        self._given += 1
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
                self._write_some()
        except OSError as error:
            if not self.problem:
                log.error("cannot write records to %s: %s; they wait in memory", self.path, error.strerror)
            self.problem = error.strerror or str(error)
            self._retry_at = time.monotonic() + RETRY_S
            return False
        if self.problem:
            log.warning("records are written to %s again", self.path)
        self.problem = ""
        self._retry_at = 0.0
        return True

    def _write_some(self) -> None:
        if not self._part:
            self._part = b"".join(islice(self._waiting, LINES_AT_ONCE))
            for _ in range(min(LINES_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()
        done = os.write(self._file, self._part)
        if not done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._part = self._part[done:]

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


def _found(path: Path) -> str:
    """What a file holds: nothing, records, half a header or something else."""
    with path.open("rb") as file:
        first = file.readline(LONGEST_HEADER)
    if not first:
        return "nothing"
    if not first.endswith(b"\n") and (first.startswith(START) or START.startswith(first)):
        return "half a header"  # of a router that was killed while it wrote that
    try:
        known = orjson.loads(first)
        fits = known["kind"] == KIND and known["schema_version"] == SCHEMA_VERSION
    except (ValueError, KeyError, TypeError):
        fits = False
    return "records" if fits else "something else"


def _ends(path: Path) -> bool:
    """Whether its last line has an end."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, headers included (they have `kind`); half lines are left out.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds something else.
    """
    if _found(path) == "something else":
        raise ValueError(f"{path} holds no records of a router")
    with path.open("rb") as file:
        for line in file:
            try:
                record = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
