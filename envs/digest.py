"""Hash of the content of dataclasses and arrays, such as a cluster."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

LATER = {"later": True}
"""Metadata of a dataclass field that came after hashes were published: its default leaves them as they were."""


def digest(value: Any) -> str:
    """Hash of a dataclass of numbers, strings, arrays and the like: 16 hex digits."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()[:16]


def _feed(state: Any, value: Any) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            if "later" in item.metadata and getattr(value, item.name) == item.default:
                continue
            state.update(item.name.encode())
            _feed(state, getattr(value, item.name))
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple):
        state.update(f"({len(value)}".encode())
        for part in value:
            _feed(state, part)
    else:
        state.update(repr(value).encode() + b";")
