"""Memory for simulators: zeroed words that start at a cache line, one by one or out of large pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import layout as L

Words = npt.NDArray[np.int64]

Allocate = Callable[[int], Words]
"""Gives so many zeroed words, the first at a page or a cache line as `aligned_words` has it."""

PIECE_WORDS = 1 << 22
"""Words of a piece of an arena: 32 MiB."""

PAGE_WORDS = 512
"""Words of a page, 4 KiB. What fills one or more starts with one: the fewer pages a step touches, the better."""


def aligned_words(count: int) -> Words:
    """A zeroed block of int64 words that starts at a page, or at a cache line if it is smaller."""
    unit = _unit(count)
    raw = np.zeros(count + unit, np.int64)
    skip = (-raw.ctypes.data % (8 * unit)) // 8
    return raw[skip : skip + count]


def _unit(count: int) -> int:
    """Words at whose multiples a block of so many words begins."""
    return PAGE_WORDS if count >= PAGE_WORDS else L.LANES


class Arena:
    """Memory for many simulators, in pieces that the system maps with large pages where it can.

    A simulator's memory is many small regions; hundreds of simulators have more pages of the usual size than a
    processor keeps addresses of. NumPy asks for large pages where an array has 4 MiB or more. What was given is kept
    until the arena and all that was given are gone.
    """

    def __init__(self) -> None:
        self._piece = aligned_words(0)

    def words(self, count: int) -> Words:
        """So many zeroed words, placed as `aligned_words` places them."""
        unit = _unit(count)
        skip = (-self._piece.ctypes.data % (8 * unit)) // 8
        if skip + count > len(self._piece):
            self._piece, skip = aligned_words(max(count, PIECE_WORDS)), 0
        end = skip + -(-count // L.LANES) * L.LANES
        given, self._piece = self._piece[skip : skip + count], self._piece[end:]
        return given


class Rows:
    """Rows of a structured type in memory that is used again and again.

    Args:
        dtype: whole words.
        allocate: gives the memory.
        least: rows for which there is room from the start.
        beside: words between a row and the next, for who knows of them.
    """

    def __init__(self, dtype: npt.DTypeLike, allocate: Allocate, least: int = 0, beside: int = 0) -> None:
        kind = np.dtype(dtype)
        self._words = kind.itemsize // 8 + beside
        self._dtype = np.dtype({"names": ["row"], "formats": [kind], "offsets": [0], "itemsize": 8 * self._words})
        self._allocate, self._least = allocate, least
        self._room = np.zeros(0, self._dtype)["row"]

    def first(self, count: int) -> npt.NDArray[Any]:
        """So many rows, zeroed or as they were left; those that were given before are lost."""
        if len(self._room) < count:
            spare = count // 2 if len(self._room) else 0  # the first are often the only ones
            rows = max(count + spare, self._least)
            self._room = self._allocate(rows * self._words).view(self._dtype)["row"]
        return self._room[:count]
