"""The router's constants as the vectors that compiled policies read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..router_constants import RouterConstants
from . import layout as L
from .compile import inline
from .memory import ldc

(C_TAU_PREFILL, C_PREFILL_CAPACITY, C_PREFILL_ROWS) = range(3)
(C_TAU_DECODE, C_TAU_SINGLE, C_DECODE_CAPACITY, C_BASE, C_PER_SEQUENCE, C_PER_CONTEXT, C_DECODE_ROWS) = range(7)


def packed(constants: RouterConstants, pre_pad: int, dec_pad: int) -> npt.NDArray[np.float64]:
    """Vectors over prefill rows, then over decode rows, padded with ones."""
    prefills = constants.prefills
    decode = slice(prefills, None)
    routed = slice(0, prefills or None)
    rows = [(constants.tau_prefill[routed], pre_pad), (constants.kv_capacity[routed], pre_pad)]
    for vector in (
        constants.tau_decode,
        constants.tau_decode_single,
        constants.kv_capacity,
        constants.base_decode,
        constants.per_sequence,
        constants.per_context,
    ):
        rows.append((vector[decode], dec_pad))
    return np.concatenate([np.pad(v.astype(np.float64), (0, pad - len(v)), constant_values=1.0) for v, pad in rows])


@inline
def prefill_constant(S: int, row: int) -> int:
    """Address of a vector of constants over prefill rows."""
    return ldc(S, L.H_CONSTANTS) + row * ldc(S, L.H_PRE_PAD) * 8


@inline
def decode_constant(S: int, row: int) -> int:
    """Address of a vector of constants over decode rows."""
    return ldc(S, L.H_CONSTANTS) + (C_PREFILL_ROWS * ldc(S, L.H_PRE_PAD) + row * ldc(S, L.H_DEC_PAD)) * 8
