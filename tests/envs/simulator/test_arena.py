"""Memory of many simulators: where it begins, and that it is used again."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs.simulator.arena import PAGE_WORDS, PIECE_WORDS, Arena, Rows, aligned_words


@pytest.mark.parametrize("count", [1, 8, PAGE_WORDS - 1, PAGE_WORDS, 5 * PAGE_WORDS + 3])
def test_what_fills_a_page_begins_with_one_and_what_is_smaller_with_a_cache_line(count: int) -> None:
    arena = Arena()
    arena.words(3)
    for given in (aligned_words(count), arena.words(count), arena.words(count)):
        assert len(given) == count and not given.any()
        assert given.ctypes.data % (4096 if count >= PAGE_WORDS else 64) == 0


def test_blocks_of_an_arena_never_overlap_and_stay_when_a_piece_is_full() -> None:
    arena = Arena()
    sizes = [5, PAGE_WORDS, 1, PIECE_WORDS // 2, PIECE_WORDS, 7, 2 * PIECE_WORDS]
    blocks = [arena.words(size) for size in sizes]
    for k, block in enumerate(blocks):
        assert len(block) == sizes[k]
        block[0] = block[-1] = k + 1
    assert [(int(block[0]), int(block[-1])) for block in blocks] == [(k + 1, k + 1) for k in range(len(sizes))]


def test_rows_keep_a_distance_and_are_given_again() -> None:
    rows = Rows(np.dtype([("a", "i8"), ("b", "i4"), ("c", "i4")]), aligned_words, least=10, beside=3)
    first = rows.first(4)
    assert first.strides == (40,) and first.dtype.itemsize == 16
    first["a"] = 7
    assert rows.first(10)["a"].tolist() == [7] * 4 + [0] * 6
    assert rows.first(11)["a"].tolist() == [0] * 11
