"""Waiting for an exact time in an event loop, whose own timers are good to a millisecond only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

NEAR_NS = 2_000_000
"""Time before which a timer is trusted; from then on the loop goes round without sleeping."""


async def wait_until(
    due: int, now: Callable[[], int], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Waits, and lets everything else in the loop go on; once at least, also where the time has passed.

    Args:
        due: ns of the clock.
        now: the clock, ns.
        sleep: for so many seconds, at least; 0 gives way once.
    """
    await sleep(max(due - now() - NEAR_NS, 0) / 1e9)  # A load that is late must not starve its requests, nor Ctrl-C.
    while (left := due - now()) > 0:
        await sleep(max(left - NEAR_NS, 0) / 1e9)
