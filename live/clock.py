"""The router's clock: picoseconds since it started, as records and ledgers count them."""

from __future__ import annotations

import time

from ..envs.cluster import PS_PER_S


class Clock:
    """Time since it was made.

    Attributes:
        started_at: seconds since 1970 at its time 0.
    """

    def __init__(self) -> None:
        self.started_at = time.time()
        self._zero = time.monotonic_ns()

    def now(self) -> int:
        """Ps."""
        return (time.monotonic_ns() - self._zero) * 1_000

    def seconds(self) -> float:
        """S."""
        return self.now() / PS_PER_S
