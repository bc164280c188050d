"""Prefix block ids of requests, as one flat array with offsets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def gather(offsets: Ints, ids: Ints, rows: npt.NDArray[np.intp]) -> tuple[Ints, Ints]:
    """Offsets and ids of some rows, in this order.

    Args:
        offsets: (N + 1,) into `ids`.
        ids: block ids.
        rows: (M,) rows to keep.

    Returns:
        Offsets (M + 1,) and the ids of those rows.
    """
    counts = np.diff(offsets)[rows]
    new = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    places = np.arange(new[-1]) + np.repeat(offsets[:-1][rows] - new[:-1], counts)
    return new, ids[places]
