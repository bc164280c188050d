"""What the feature formulas read of each instance, as one array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import features as F
from .router_constants import RouterConstants


def about_instances(constants: RouterConstants, block_size: int) -> npt.NDArray[np.float64]:
    """(len(ABOUT), I) constants (s, tokens), role and place of every instance.

    Args:
        constants: what the router believes.
        block_size: tokens per KV block (polls report blocks).
    """
    count, prefills = len(constants), constants.prefills
    sizes = (prefills, count - prefills)
    roles = (F.ROLE_PREFILL, F.ROLE_DECODE) if prefills else (F.ROLE_PREFILL, F.ROLE_MIXED)
    derived = {
        "role": np.repeat(roles, sizes),
        "index": np.concatenate([np.arange(size) / max(1, size - 1) for size in sizes]),
        "block_size": np.full(count, block_size),
    }
    rows = [derived[name] if name in derived else getattr(constants, name) for name in F.ABOUT]
    return np.stack(rows).astype(np.float64)
