"""Checkpoints: the state of a training run in one file that says what it belongs to and whether it is whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ...envs.features import VERSION as FEATURES_VERSION
from ..runs import write_atomically

SCHEMA_VERSION = 1
"""Version of the file: a line of JSON, then the content."""


def write_checkpoint(path: Path, content: bytes, *, key: str, step: int) -> None:
    """Writes a checkpoint; it is there whole or not at all.

    Args:
        path: the file.
        content: what the method wants back.
        key: of the run.
        step: units of the budget that it has done.

    Raises:
        OSError: it cannot be written.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "features_version": FEATURES_VERSION,
        "key": key,
        "step": step,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_atomically(path, json.dumps(head).encode() + b"\n" + content)


def read_checkpoint(path: Path, *, key: str) -> tuple[int, bytes]:
    """Units of the budget done, and the content.

    Raises:
        ValueError: the file is damaged, of another version or other features, or of another run.
        OSError: it cannot be read.
    """
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        versions = head["schema_version"], head["features_version"]
        owner, step, digest = str(head["key"]), int(head["step"]), str(head["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path) from None
    for name, found, ours in zip(
        ("schema_version", "features_version"), versions, (SCHEMA_VERSION, FEATURES_VERSION), strict=True
    ):
        if found != ours:
            raise ValueError(f"{path}: {name} is {found!r}; this version reads {ours}; train anew in another folder")
    if owner != key:
        raise ValueError(f"{path} belongs to another training run; name another folder")
    if hashlib.sha256(content).hexdigest() != digest:
        raise _damaged(path)
    return step, content


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged; delete it, and training goes on from the one before it")
