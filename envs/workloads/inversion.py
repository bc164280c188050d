"""Inverting tabulated distribution functions, in compiled code.

A guide says for each of 2^k equal cells of [0, 1) where in a table to begin, so a look-up takes a step or two instead
of a search (Chen and Asau, "On generating random variates from an empirical distribution", AIIE Transactions 6, 1974).
There are half as many cells as entries: values seldom fall where entries are dense, and a guide that is read all over
should be small. So the first step is taken without a branch, and a second one is rare.
Since the number of cells is a power of two, the cell of a value is found without rounding, and the result is that of
`numpy.searchsorted(table, values, side="right")`, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..simulator.compile import entry, inline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_CELLS = 8
"""Of a guide."""


@dataclass(frozen=True, eq=False)
class Inverse:
    """Distribution functions, ready to be inverted.

    Attributes:
        tables: their tables, one after the other; each ends with 1.
        starts: (F,) where each begins.
        guides: by cell, one guide after the other: where a search begins.
        cells: (F + 1,) where each guide begins, and the end.
        first: (F,) what the first place of each stands for.
    """

    tables: Floats
    starts: Ints
    guides: npt.NDArray[np.int32]
    cells: Ints
    first: Ints

    @classmethod
    def of(cls, tables: Sequence[Floats], first: Sequence[int] | None = None) -> Inverse:
        """Takes ascending tables, each of which ends with 1, and what their first places stand for: 0 unless given."""
        guides = []
        for table in tables:
            cells = max(LEAST_CELLS, (1 << (len(table) - 1).bit_length()) >> 1)
            guides.append(np.searchsorted(table, np.arange(cells) / cells, side="right"))
        return cls(
            np.concatenate(tables),
            np.cumsum([0, *map(len, tables[:-1])]),
            np.concatenate(guides).astype(np.int32),
            np.cumsum([0, *map(len, guides)]),
            np.array([0] * len(tables) if first is None else first, np.int64),
        )

    def places(self, values: Floats, which: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
        """First place of a table whose entry is above the value, counted from `first`, for each value.

        Args:
            values: (N,) in [0, 1).
            which: (N,) the table for each.
        """
        found = np.empty(len(values), np.int32)
        _first_above(self.tables, self.starts, self.guides, self.cells, self.first, values, which, found)
        return found


@entry
def _first_above(
    tables: Floats,
    starts: Ints,
    guides: npt.NDArray[np.int32],
    cells: Ints,
    first: Ints,
    values: Floats,
    which: npt.NDArray[np.int8],
    found: npt.NDArray[np.int32],
) -> None:
    for k in range(len(values)):
        one = which[k]
        found[k] = first[one] + place_of(tables, starts, guides, cells, one, values[k])


@inline
def place_of(
    tables: Floats, starts: Ints, guides: npt.NDArray[np.int32], cells: Ints, one: int, value: float
) -> int:
    """First place of table `one` whose entry is above the value, from 0."""
    cell, start = cells[one], starts[one]
    place = int(guides[cell + int(value * (cells[one + 1] - cell))])
    place += int(tables[start + place] <= value)
    while tables[start + place] <= value:
        place += 1
    return place
