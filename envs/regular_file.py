"""Files that can be read to their end."""

from __future__ import annotations

from pathlib import Path


def check_regular(path: str | Path) -> None:
    """Refuses pipes, devices and sockets: they may have no end, or wait for somebody who writes.

    Whether there is such a file at all is for its reader to say.

    Raises:
        ValueError: it is no regular file, or its name holds a null character.
    """
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r} holds a null character; no file has such a name")
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: is no regular file; copy what it gives into one")
