"""Waiting for what must come about, however long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GIVE_UP_S = 60.0
"""Only a test that would hang sees it."""


def run(story: Coroutine[Any, Any, T]) -> T:
    """Runs a story to its end."""

    async def bounded() -> T:
        async with asyncio.timeout(GIVE_UP_S):
            return await story

    return asyncio.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    """Returns once a condition holds."""
    while not condition():
        await asyncio.sleep(0.002)
