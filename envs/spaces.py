"""Observation and action spaces of the environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from . import features
from .features import Feature

HIGHEST = float(np.finfo(np.float32).max)

_BOUNDED = {"tight": (0.0, 1.0), "available": (0.0, 1.0), "index": (0.0, 1.0), "role": (-1.0, 1.0)}
"""Features with other bounds than 0 and the largest float32."""


def observation_space(prefills: int, decodes: int, *, aggregated: bool) -> spaces.Dict:
    """`request`, and `prefill` and `decode`, or `mixed`.

    Args:
        prefills: rows of the prefill pool.
        decodes: rows of the decode pool, or of the mixed one.
        aggregated: whether the instances are mixed.
    """
    found: dict[str, spaces.Space[Any]] = {"request": _box(features.REQUEST)}
    if aggregated:
        return spaces.Dict(found | {"mixed": _box(features.MIXED, decodes)})
    return spaces.Dict(found | {"prefill": _box(features.PREFILL, prefills), "decode": _box(features.DECODE, decodes)})


def action_space(prefills: int, decodes: int, *, aggregated: bool) -> spaces.MultiDiscrete | spaces.Discrete:
    """A prefill and a decode instance, or one mixed instance."""
    return spaces.Discrete(decodes) if aggregated else spaces.MultiDiscrete([prefills, decodes])


def _box(columns: Sequence[Feature], rows: int | None = None) -> spaces.Box:
    bounds = np.array([_BOUNDED.get(column.name, (0.0, HIGHEST)) for column in columns], np.float32)
    low, high = bounds.T
    if rows is not None:
        low, high = np.tile(low, (rows, 1)), np.tile(high, (rows, 1))
    return spaces.Box(low, high, dtype=np.float32)
