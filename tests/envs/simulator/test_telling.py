"""What a simulator has beside its state when its steps are told of."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster
from disaggroute.envs.simulator import Simulator
from disaggroute.envs.simulator import layout as L
from disaggroute.envs.simulator.arena import aligned_words
from disaggroute.envs.simulator.deadlines import STRETCH_WORDS, fate_words
from disaggroute.envs.simulator.telling import MARKED, Telling

from ...differential.scenarios import engine, requests

PAIR = Cluster(prefill=(engine(),), decode=(engine(),))
TRACE = requests((0, 10, 3), (5, 10, 3))


def test_records_that_are_not_kept_cannot_be_read_or_copied() -> None:
    simulator = Simulator(PAIR, TRACE, learns="bucket", told=True, keep_records=False)
    for look in (lambda: simulator.records, simulator.snapshot, simulator.clone):
        with pytest.raises(RuntimeError, match="this simulator keeps no records"):
            look()


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_there_stays_when_there_are_more_slots(kept: bool) -> None:
    block = np.zeros(L.HEADER_WORDS, np.int64)
    block[L.H_CAPACITY] = 2 * MARKED
    telling = Telling(aligned_words, room=5, keep_records=kept)
    telling.begin(block, requests=3)
    words, at = telling._words, telling._at
    telling.told[:, 0], telling.told[:, 1] = np.arange(5), np.arange(5) + 10
    fates = (int(block[L.H_FATES]) - words.ctypes.data) // 8
    assert (words[fates : fates + fate_words(2 * MARKED)] == L.FOREVER).all()
    words[fates : fates + fate_words(2 * MARKED)] = np.arange(2 * STRETCH_WORDS)
    if not kept:
        assert (block[L.H_HIGH], block[L.H_FREE_SLOT], words[at]) == (MARKED, 0, -1)
        words[at], words[at + 1], block[L.H_HIGH], block[L.H_FREE_SLOT] = 0, 6, 2 * MARKED, -1

    block[L.H_CAPACITY] = 4 * MARKED
    telling.grow(block)
    words, at = telling._words, telling._at
    assert telling.told.tolist() == [[k, k + 10] for k in range(5)]
    fates = (int(block[L.H_FATES]) - words.ctypes.data) // 8
    assert words[fates : fates + 2 * STRETCH_WORDS].tolist() == list(range(2 * STRETCH_WORDS))
    assert (words[fates + 2 * STRETCH_WORDS : fates + fate_words(4 * MARKED)] == L.FOREVER).all()
    if kept:
        assert block[L.H_MARKS] == 0
    else:
        assert words[at : at + 4].tolist() == [0, 6, -1, 0]
        assert (block[L.H_HIGH], block[L.H_FREE_SLOT]) == (3 * MARKED, 2 * MARKED)


def test_a_longer_trace_gets_more_entries() -> None:
    block = np.zeros(L.HEADER_WORDS, np.int64)
    block[L.H_CAPACITY] = MARKED
    telling = Telling(aligned_words, room=2, keep_records=True)
    telling.begin(block, requests=2)
    assert len(telling.told) == 2
    telling.begin(block, requests=7)
    assert len(telling.told) >= 7
