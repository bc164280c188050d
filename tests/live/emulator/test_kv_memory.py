"""Blocks have numbers, and hold what was written into them last."""

from __future__ import annotations

import pytest

from disaggroute.live.emulator.kv_memory import KvMemory


def test_blocks_are_given_out_the_longest_free_first_and_keep_their_content_until_then() -> None:
    memory = KvMemory(4)
    first = memory.take(2, 11, now=0)
    assert first == [1, 2] and memory.read(first) == 11
    memory.give_back(first, when=10)
    assert memory.take(2, 22, now=5) == [3, 4]
    assert memory.read(first) == 11
    with pytest.raises(ValueError, match="1 KV blocks are taken at 9 ps; 0 are free"):
        memory.take(1, 33, now=9)
    assert memory.take(1, 33, now=10) == [1]
    assert memory.read([1, 2]) not in (11, 33) and memory.read([2, 1]) != memory.read([1, 2])
    assert memory.read([1]) == 33
