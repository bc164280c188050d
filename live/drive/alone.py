"""One run at a time on an engine: two would be measured together and nobody would see it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER = "disaggroute-runs"
"""Where the locks lie, in this machine's folder for temporary files, with the user's number."""


class InUse(RuntimeError):
    """Another process of this user drives a run on an engine."""


@contextmanager
def alone(engines: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Keeps other runs of this user on this machine off these engines. A process that dies keeps nobody off.

    Args:
        engines: name and URL of each.

    Raises:
        InUse: another run is on one of them; names it.
        OSError: a lock cannot be made.
    """
    folder = Path(tempfile.gettempdir()) / f"{FOLDER}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    held: list[int] = []
    try:
        for name, url in engines:
            path = folder / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
            held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            try:
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(
                    f"another evaluation has a run on {name} ({url}); wait for it: a run needs the engines for itself"
                ) from None
        yield
    finally:
        for file in held:
            os.close(file)
