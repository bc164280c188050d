"""What requests are, drawn in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..simulator import layout as L
from ..simulator.compile import entry, inline
from ..streams import Purpose
from .inversion import Inverse, place_of
from .uniform import State, Words, begin, seed_words, step, uniform

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.int8]
Tokens = npt.NDArray[np.int32]

BLOCK = 256
"""Numbers are drawn, and then looked up, for so many requests at a time: short loops, that wait for many tables' cache
lines at once."""

STREAMS: tuple[Purpose, ...] = ("families", "prompts", "outputs", "classes")
"""That decide family, prompt, output and SLO class."""


@dataclass(frozen=True, eq=False)
class Draw:
    """The laws of some families, ready to be sampled together.

    Attributes:
        laws: one law after the other: which family; the prompts of each; the outputs of each.
        tight_shares: (F,) share of the class tight by family.
    """

    laws: Inverse
    tight_shares: Floats

    @classmethod
    def of(
        cls, shares: Floats, prompts: Sequence[Floats], outputs: Sequence[Floats], first: Sequence[int], tight: Floats
    ) -> Draw:
        """Takes tables of the distribution functions, each of which ends with 1.

        Args:
            shares: of the families.
            prompts: of the prompt length, one per family.
            outputs: of the output length, likewise.
            first: what the first places of the prompt and then of the output tables stand for, tokens.
            tight: (F,) share of the class tight by family.
        """
        return cls(Inverse.of([shares, *prompts, *outputs], [0, *first]), np.ascontiguousarray(tight, np.float64))

    def requests(self, n: int, seed: int) -> tuple[Bytes, Tokens, Tokens, Bytes]:
        """Family, prompt, output and SLO class (index into SLO_CLASSES) of n requests, each (n,).

        Args:
            n: how many.
            seed: of the streams that decide each of these.
        """
        family, slo = np.empty((2, n), np.int8)
        prompt, output = np.empty((2, n), np.int32)
        laws = self.laws
        tables = laws.tables, laws.starts, laws.guides, laws.cells, laws.first
        _draw(seed_words(seed, STREAMS), *tables, self.tight_shares, family, prompt, output, slo)
        return family, prompt, output, slo

    def write(
        self, seed: int, arrival: npt.NDArray[np.int64], ttft: tuple[int, int], tpot: tuple[int, int], rows: Any
    ) -> None:
        """Writes `requests` as a simulator reads them (its TRACE_ROW), without predictions, all of the first router.

        Args:
            seed: of the streams.
            arrival: (N,) ps.
            ttft: TTFT target by SLO class, ps.
            tpot: TPOT target likewise.
            rows: (N,) to be written.
        """
        laws = self.laws
        tables = laws.tables, laws.starts, laws.guides, laws.cells, laws.first
        words, halves = rows.view(np.int64), rows.view(np.int32)
        _write(seed_words(seed, STREAMS), *tables, self.tight_shares, arrival, ttft, tpot, words, halves)


Streams = tuple[State, State, State, State]


@inline
def _block(
    streams: Streams,
    tables: Floats,
    starts: npt.NDArray[np.int64],
    guides: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    tight_shares: Floats,
    numbers: Floats,
    start: int,
    count: int,
    family: Bytes,
    prompt: Tokens,
    output: Tokens,
    slo: Bytes,
) -> Streams:
    """Draws `count` requests into columns, from `start` on; `numbers`: room for 2 × BLOCK."""
    kinds, prompts, outputs, classes = streams
    families = len(tight_shares)
    for k in range(count):
        kinds, prompts, outputs, classes = step(kinds), step(prompts), step(outputs), step(classes)
        numbers[k], numbers[BLOCK + k] = uniform(prompts), uniform(outputs)
        one = place_of(tables, starts, guides, cells, 0, uniform(kinds))
        family[start + k] = one
        slo[start + k] = uniform(classes) >= tight_shares[one]
    for k in range(count):
        one = family[start + k] + 1
        prompt[start + k] = first[one] + place_of(tables, starts, guides, cells, one, numbers[k])
    for k in range(count):
        one = family[start + k] + 1 + families
        output[start + k] = first[one] + place_of(tables, starts, guides, cells, one, numbers[BLOCK + k])
    return kinds, prompts, outputs, classes


@entry
def _write(
    words: Words,
    tables: Floats,
    starts: npt.NDArray[np.int64],
    guides: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    tight_shares: Floats,
    arrival: npt.NDArray[np.int64],
    ttft: tuple[int, int],
    tpot: tuple[int, int],
    rows: npt.NDArray[np.int64],
    halves: npt.NDArray[np.int32],
) -> None:
    streams = begin(words[0]), begin(words[1]), begin(words[2]), begin(words[3])
    numbers, family, slo = np.empty(2 * BLOCK), np.empty(BLOCK, np.int8), np.empty(BLOCK, np.int8)
    prompt, output = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for start in range(0, len(arrival), BLOCK):
        count = min(BLOCK, len(arrival) - start)
        streams = _block(
            streams, tables, starts, guides, cells, first, tight_shares, numbers, 0, count, family, prompt, output, slo
        )
        for k in range(count):
            row = (start + k) * L.TRACE_WORDS
            loose = slo[k] != 0
            rows[row + L.T_ARRIVAL] = arrival[start + k]
            rows[row + L.T_TTFT] = ttft[1] if loose else ttft[0]
            rows[row + L.T_TPOT] = tpot[1] if loose else tpot[0]
            halves[2 * row + L.T32_PROMPT] = prompt[k]
            halves[2 * row + L.T32_OUTPUT] = output[k]
            halves[2 * row + L.T32_PREDICTED] = 0
            halves[2 * row + L.T32_WHO] = np.int32(slo[k]) << L.ROUTER_BITS


@entry
def _draw(
    words: Words,
    tables: Floats,
    starts: npt.NDArray[np.int64],
    guides: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    tight_shares: Floats,
    family: Bytes,
    prompt: Tokens,
    output: Tokens,
    slo: Bytes,
) -> None:
    n, numbers = len(family), np.empty(2 * BLOCK)
    streams = begin(words[0]), begin(words[1]), begin(words[2]), begin(words[3])
    for start in range(0, n, BLOCK):
        count = min(BLOCK, n - start)
        streams = _block(
            streams,
            tables,
            starts,
            guides,
            cells,
            first,
            tight_shares,
            numbers,
            start,
            count,
            family,
            prompt,
            output,
            slo,
        )
