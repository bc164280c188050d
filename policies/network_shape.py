"""Shape of a network: which weights it has, in which order, and where it starts.

One scorer for each stage (prefill, decode, mixed), shared by all instances of a pool:

    cost(i) = Σ over columns k of (w(k) + Σ over request features r of w(r, k) · x(r)) · x(i, k)     the skip
              + out · h(i),    h(i) = act(bias + context · c + instance · u(i))                      the hidden units

u(i) are the columns INPUTS of the instance and c is what all instances of the pool share: the features of the request,
log2 of the number m of instances that may be assigned, over 4, then the mean, the least and the greatest of the columns
SUMMARY over these m instances. All of u and c are clipped to ±CLIP; the skip is not. act(z) = max(z, LEAK · z). With a
second layer h(i) = act(second_bias + second · the units of the first).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..envs import features as F

Float32s = npt.NDArray[np.float32]

STAGES = ("prefill", "decode", "mixed")
"""Order of the stages in the vector of weights."""

COLUMNS = {"prefill": F.PREFILL, "decode": F.DECODE, "mixed": F.MIXED}
"""Features of an instance, by stage: what the skip weighs."""

_STATE = {
    stage: tuple(c.name for c in columns if c not in F.PROFILE) for stage, columns in COLUMNS.items()
}

INPUTS = {
    "prefill": (*_STATE["prefill"], "tau_prefill", "kv_capacity", "index"),
    "decode": (*_STATE["decode"], "tau_decode", "kv_capacity", "index"),
    "mixed": (*_STATE["mixed"], "tau_prefill", "tau_decode", "kv_capacity", "index"),
}
"""Columns of an instance that the hidden units read: the ledger, the poll, the index, and its main constants."""

_PREFILL_SUMMARY = ("queued", "queued_work", "prefill_ratio")
_DECODE_SUMMARY = ("in_flight", "context_ratio", "remaining_work", "step_ratio")

SUMMARY = {
    "prefill": _PREFILL_SUMMARY,
    "decode": _DECODE_SUMMARY,
    "mixed": (*_PREFILL_SUMMARY, *_DECODE_SUMMARY),
}
"""Columns whose mean, least and greatest over the pool the hidden units read."""

CLIP = 10.0
LEAK = 0.125
LOG_SCALE = 4.0
"""What log2 of the number of instances is divided by."""

MOST_LAYERS, MOST_UNITS = 2, 256


def columns_at(stage: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Where these columns are among `COLUMNS` of the stage."""
    order = [feature.name for feature in COLUMNS[stage]]
    return tuple(order.index(name) for name in names)


def contexts(stage: str) -> int:
    """How many numbers all instances of a pool share: the request's features, the size, the summary."""
    return len(F.REQUEST) + 1 + 3 * len(SUMMARY[stage])


@dataclass(frozen=True)
class Shape:
    """Widths of the hidden layers; the same for all stages.

    Attributes:
        hidden: one or two numbers of units, each 1 to 256.

    Raises:
        ValueError: other layers.
    """

    hidden: tuple[int, ...] = (16,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not 1 <= len(self.hidden) <= MOST_LAYERS:
            raise ValueError(f"hidden has {len(self.hidden)} layers; it must have 1 to {MOST_LAYERS}")
        for units in self.hidden:
            if not 1 <= units <= MOST_UNITS:
                raise ValueError(f"hidden is {list(self.hidden)}; each layer must have 1 to {MOST_UNITS} units")

    @cached_property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Names and sizes of the arrays, in the order of the vector; each is stored row by row.

        Of each stage: `skip` (1 + request features, columns): first the weights of the columns, then those of their
        products with each request feature; `context` (shared inputs, units), `instance` (columns INPUTS, units),
        `bias` (units,); with a second layer `second` (units of the first, of the second), `second_bias`; `out`, the
        weights of the last layer's units in the cost.
        """
        found: dict[str, tuple[int, ...]] = {}
        first, last = self.hidden[0], self.hidden[-1]
        for stage in STAGES:
            found[f"{stage}.skip"] = (1 + len(F.REQUEST), len(COLUMNS[stage]))
            found[f"{stage}.context"] = (contexts(stage), first)
            found[f"{stage}.instance"] = (len(INPUTS[stage]), first)
            found[f"{stage}.bias"] = (first,)
            if len(self.hidden) > 1:
                found[f"{stage}.second"] = (first, last)
                found[f"{stage}.second_bias"] = (last,)
            found[f"{stage}.out"] = (last,)
        return found

    @cached_property
    def size(self) -> int:
        """Weights in all."""
        return sum(int(np.prod(size)) for size in self.arrays.values())

    def split(self, vector: npt.NDArray[np.floating]) -> dict[str, npt.NDArray[np.floating]]:
        """The arrays by name, as views of the vector.

        Args:
            vector: (size,) weights.

        Raises:
            ValueError: the vector has another shape.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"vector has shape {vector.shape}; hidden {list(self.hidden)} needs ({self.size},)")
        found, at = {}, 0
        for name, size in self.arrays.items():
            count = int(np.prod(size))
            found[name] = vector[at : at + count].reshape(size)
            at += count
        return found

    def join(self, arrays: Mapping[str, npt.ArrayLike]) -> Float32s:
        """The vector of these arrays: the inverse of `split`.

        Raises:
            ValueError: an array is missing, is one too many, or has another shape.
        """
        if arrays.keys() != self.arrays.keys():
            odd = sorted(arrays.keys() ^ self.arrays.keys())
            raise ValueError(f"arrays: {odd[0]} is missing or not one of them; they must be {', '.join(self.arrays)}")
        parts = []
        for name, size in self.arrays.items():
            array = np.asarray(arrays[name], np.float32)
            if array.shape != size:
                raise ValueError(f"{name} has shape {array.shape}; hidden {list(self.hidden)} needs {size}")
            parts.append(array.ravel())
        return np.concatenate(parts)

    def initial(self, rng: np.random.Generator, scale: float = 1.0) -> Float32s:
        """Weights to start from: they decide as `linear` does by default, and every unit sees something of its own.

        The skip is that of `linear`, the weights of the units in the cost and the biases are 0, the others normal with
        standard deviation scale ÷ √(inputs of the unit).

        Args:
            rng: draws the weights; the same state gives the same bytes.
            scale: at least 0.
        """
        arrays = {name: np.zeros(size, np.float32) for name, size in self.arrays.items()}
        for stage in STAGES:
            for column in _BY_DEFAULT[stage]:
                arrays[f"{stage}.skip"][0, columns_at(stage, (column,))] = 1.0
            drawn = {"context": len(INPUTS[stage]) + contexts(stage), "second": self.hidden[0]}
            drawn["instance"] = drawn["context"]
            for part in ("context", "instance", "second"):
                name = f"{stage}.{part}"
                if name in arrays:
                    spread = scale / np.sqrt(drawn[part])
                    arrays[name] = (spread * rng.standard_normal(self.arrays[name])).astype(np.float32)
        return self.join(arrays)


_BY_DEFAULT = {"prefill": ("prefill_ratio",), "decode": ("step_ratio",), "mixed": ("prefill_ratio", "step_ratio")}
"""Columns that `linear` weighs by default, with 1."""
