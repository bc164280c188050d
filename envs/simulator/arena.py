"""Memory for simulators: zeroed words that start at a cache line, one by one or out of large pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import layout as L

Words = npt.NDArray[np.int64]

Allocate = Callable[[int], Words]
"""Gives so many zeroed words, the first at a cache line."""

PIECE_WORDS = 1 << 22
"""Words of a piece of an arena: 32 MiB."""


def aligned_words(count: int) -> Words:
    """A zeroed block of int64 words that starts at a cache line."""
    raw = np.zeros(count + L.LANES, np.int64)
    skip = (-raw.ctypes.data % 64) // 8
    return raw[skip : skip + count]


class Arena:
    """Memory for many simulators, in pieces that the system maps with large pages where it can.

    A simulator's memory is many small regions; hundreds of simulators have more pages of the usual size than a
    processor keeps addresses of. NumPy asks for large pages where an array has 4 MiB or more. What was given is kept
    until the arena and all that was given are gone.
    """

    def __init__(self) -> None:
        self._piece = aligned_words(0)

    def words(self, count: int) -> Words:
        """So many zeroed words, the first at a cache line."""
        taken = -(-count // L.LANES) * L.LANES
        if taken > len(self._piece):
            self._piece = aligned_words(max(taken, PIECE_WORDS))
        given, self._piece = self._piece[:count], self._piece[taken:]
        return given


class Rows:
    """Rows of a structured type in memory that is used again and again.

    Args:
        dtype: whole words.
        allocate: gives the memory.
        least: rows for which there is room from the start.
    """

    def __init__(self, dtype: npt.DTypeLike, allocate: Allocate, least: int = 0) -> None:
        self._dtype, self._allocate, self._least = np.dtype(dtype), allocate, least
        self._room = np.zeros(0, self._dtype)

    def cleared(self, count: int) -> npt.NDArray[Any]:
        """So many zeroed rows; those that were given before are lost."""
        if len(self._room) < count:
            spare = count // 2 if len(self._room) else 0  # the first are often the only ones
            rows = max(count + spare, self._least)
            self._room = self._allocate(rows * self._dtype.itemsize // 8).view(self._dtype)
            return self._room[:count]
        rows_again = self._room[:count]
        rows_again.view(np.int64).fill(0)
        return rows_again
