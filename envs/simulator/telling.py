"""Memory of a simulator whose steps are told of (`stepping.py`): entries, and marks and deadlines by slot.

Where hundreds of clusters take turns, a step should touch few pages: a processor keeps the addresses of some thousand
(of 4 KiB, whatever the system says, if a virtual machine's host maps them so). The first entries, which grow backwards,
the marks and the first deadlines share one.
"""

from __future__ import annotations

import numpy as np

from . import layout as L
from .arena import PAGE_WORDS, Allocate, Words
from .deadlines import fate_words

FIRST_ENTRIES = 8
"""Entries on the page of the marks: there are seldom more."""

MARKED = 64
"""Slots of a word of marks."""


class Telling:
    """What a simulator has beside its state block.

    Args:
        allocate: gives the memory.
        room: requests for which there is room from the start.
        keep_records: whether records are kept by request; only else there are marks.
    """

    def __init__(self, allocate: Allocate, room: int, keep_records: bool) -> None:
        self._allocate, self._kept = allocate, keep_records
        self._entries, self._capacity = max(room, 1), 0
        self._words: Words = np.zeros(0, np.int64)
        self._at = 0
        self.told: Words = np.zeros((0, 2), np.int64)
        """(N, 2) requests that ended, requests whose miss became certain; a view."""

    def begin(self, block: Words, requests: int) -> None:
        """Prepares for a trace of so many requests; the state block is empty."""
        if requests > self._entries or block[L.H_CAPACITY] != self._capacity:
            entries = self._entries if requests <= self._entries else requests + requests // 2
            self._make(entries, int(block[L.H_CAPACITY]))
        fates = self._at + self._marks()
        self._words[fates : fates + fate_words(self._capacity)] = L.FOREVER
        self._place(block)
        if not self._kept:
            self._words[self._at : fates] = 0
            self._use_more(block)

    def grow(self, block: Words) -> None:
        """Makes room for as many slots as the block has now; what was there stays."""
        old, at, slots = self._words, self._at, self._capacity
        marks = self._marks()
        self._make(self._entries, int(block[L.H_CAPACITY]))
        self._words[self._at : self._at + marks] = old[at : at + marks]
        fates = self._at + self._marks()
        self._words[fates : fates + fate_words(self._capacity)] = L.FOREVER
        self._words[fates : fates + fate_words(slots)] = old[at + marks : at + marks + fate_words(slots)]
        held = self._entries * L.ENTRY_WORDS
        self._words[self._at - held : self._at] = old[at - held : at]
        self._place(block)
        if not self._kept and block[L.H_FREE_SLOT] < 0:
            self._use_more(block)

    def _use_more(self, block: Words) -> None:
        """More slots come into use, of which the first is the next to be taken."""
        used = int(block[L.H_HIGH])
        self._words[self._at + used // MARKED] = -1
        block[L.H_HIGH], block[L.H_FREE_SLOT] = used + MARKED, used

    def _marks(self) -> int:
        """Words of marks, whole cache lines."""
        return -(-self._capacity // (MARKED * L.LANES)) * L.LANES

    def _make(self, entries: int, capacity: int) -> None:
        self._entries, self._capacity = entries, capacity
        self._at = -(-entries * L.ENTRY_WORDS // PAGE_WORDS) * PAGE_WORDS + FIRST_ENTRIES * L.ENTRY_WORDS
        self._words = self._allocate(self._at + self._marks() + fate_words(capacity))
        told = self._words[self._at - entries * L.ENTRY_WORDS : self._at].reshape(entries, L.ENTRY_WORDS)
        self.told = told[::-1, L.N_ENDED : L.N_MISSED + 1]

    def _place(self, block: Words) -> None:
        address = int(self._words.ctypes.data)
        block[L.H_ENTRIES] = address + 8 * self._at
        block[L.H_FATES] = address + 8 * (self._at + self._marks())
        if not self._kept:
            block[L.H_MARKS] = address + 8 * self._at
