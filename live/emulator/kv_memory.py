"""The KV blocks of a prefill engine by number, and what stands in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from . import tokens


class KvMemory:
    """Which blocks hold which prompt.

    How many blocks are free is the engine model's business; here they get numbers. A freed block keeps its content
    until it is given out again, the longest-free first: who reads it in between reads the old prompt, later another.

    Args:
        num_blocks: usable blocks; they are numbered from 1, as block 0 is never used.
    """

    def __init__(self, num_blocks: int) -> None:
        self._size = num_blocks
        self._content: dict[int, tuple[int, int]] = {}
        self.clear()

    def clear(self) -> None:
        """All blocks are free; what stands in them stays."""
        self._free = deque(range(1, self._size + 1))
        self._freed_later: list[tuple[int, int, list[int]]] = []
        self._count = 0

    def take(self, count: int, prompt: int, now: int) -> list[int]:
        """Numbers of free blocks, which hold a prompt from now on.

        Args:
            count: how many.
            prompt: its digest.
            now: ps.

        Raises:
            ValueError: fewer are free.
        """
        while self._freed_later and self._freed_later[0][0] <= now:
            self._free.extend(heappop(self._freed_later)[2])
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks are taken at {now} ps; {len(self._free)} are free")
        blocks = [self._free.popleft() for _ in range(count)]
        self._content |= {block: (prompt, place) for place, block in enumerate(blocks)}
        return blocks

    def give_back(self, blocks: list[int], when: int) -> None:
        """Blocks are free from `when` (ps) on."""
        self._count += 1
        heappush(self._freed_later, (when, self._count, blocks))

    def read(self, blocks: Iterable[int]) -> int:
        """The digest that the content of these blocks, in this order, stands for.

        That of the prompt which was written into them, in this order and whole or its beginning; else another one.
        """
        content = [self._content.get(block, (0, 0)) for block in blocks]
        if content and all(pair == (content[0][0], place) for place, pair in enumerate(content)):
            return content[0][0]
        return tokens.mix(content)
