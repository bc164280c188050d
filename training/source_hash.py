"""Hash of the code that decides results, so that stored runs of other code are never taken for its own."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

DECIDING = (
    "envs",
    "policies",
    "training/metrics.py",
    "training/record_table.py",
    "training/summary.py",
)
"""Folders and files whose change may change a number."""

SUFFIXES = (".py", ".yaml")


@lru_cache(maxsize=8)
def source_hash(more: tuple[str, ...] = ()) -> str:
    """16 hex digits of SHA-256 over the sources in `DECIDING`, and in further folders and files."""
    root = Path(__file__).resolve().parent.parent
    state = hashlib.sha256()
    for name in (*DECIDING, *more):
        place = root / name
        for path in [place] if place.suffix in SUFFIXES else _sources(place):
            content = path.read_bytes()
            state.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()[:16]


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
