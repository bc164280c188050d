"""Files that are never seen half-written, also after a crash or a loss of power."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that is either absent, the old one or complete, also after a loss of power.

    Raises:
        OSError: the file cannot be written; the message is one sentence.
    """
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place when the block ends, and is not there if it ends with an error.

    Raises:
        OSError: the file cannot be written; the message is one sentence.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_error(error, path) from error
        raise


def append_line(path: Path, line: str) -> None:
    """Appends a line to a text file, which is created if need be.

    Raises:
        OSError: the file cannot be written; the message is one sentence.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(error, path) from error


def write_error(error: OSError, path: Path) -> OSError:
    """The error of a file that cannot be written, as one sentence."""
    reason = os.strerror(error.errno or errno.EIO).lower()
    return OSError(error.errno, f"cannot write {path}: {reason}")
