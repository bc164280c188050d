"""The router's constants as the vectors that compiled policies read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..router_constants import RouterConstants
from . import layout as L
from .compile import inline
from .memory import ldc

(
    C_TAU_PREFILL,
    C_PREFILL_CAPACITY,
    C_BASE_PREFILL,
    C_PER_TOKEN,
    C_PER_TOKEN_SQ,
    C_PREFILL_GROUP,
) = range(0, 48, 8)
(
    C_TAU_DECODE,
    C_TAU_SINGLE,
    C_DECODE_CAPACITY,
    C_BASE_DECODE,
    C_PER_SEQUENCE,
    C_PER_CONTEXT,
    C_DECODE_GROUP,
) = range(0, 56, 8)
# fields of rows grouped by eight instances, like those of the ledger

_PREFILL = ("tau_prefill", "kv_capacity", "base_prefill", "per_token", "per_token_sq")
_DECODE = ("tau_decode", "tau_decode_single", "kv_capacity", "base_decode", "per_sequence", "per_context")
# the same fields as RouterConstants names them


def packed(constants: RouterConstants, pre_groups: int) -> npt.NDArray[np.float64]:
    """The prefill rows, then the decode rows, padded with ones.

    Args:
        constants: s per token, and tokens.
        pre_groups: groups of eight prefill rows that the state block has.

    Raises:
        ValueError: the constants are for another number of prefill instances.
    """
    routed = slice(0, constants.prefills or None)
    decoding = slice(constants.prefills, None)
    prefill = _grouped([getattr(constants, name)[routed] for name in _PREFILL])
    decode = _grouped([getattr(constants, name)[decoding] for name in _DECODE])
    if len(prefill) != pre_groups * C_PREFILL_GROUP:
        raise ValueError(
            f"constants are for {len(constants)} instances with {constants.prefills} prefill instances; "
            "the cluster has others"
        )
    return np.concatenate([prefill, decode])


def _grouped(fields: list[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    count = len(fields[0])
    padded = -(-count // L.LANES) * L.LANES
    rows = np.ones((len(fields), padded))
    rows[:, :count] = fields
    return np.ascontiguousarray(rows.reshape(len(fields), -1, L.LANES).transpose(1, 0, 2)).reshape(-1)


@inline
def prefill_constants(S: int) -> int:
    """Address of the constants of the prefill rows."""
    return ldc(S, L.H_CONSTANTS)


@inline
def decode_constants(S: int) -> int:
    """Address of the constants of the decode rows."""
    return ldc(S, L.H_CONSTANTS) + ldc(S, L.H_PRE_GROUPS) * (C_PREFILL_GROUP * 8)
