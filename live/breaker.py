"""A circuit breaker per engine: it counts the engine's faults, never the client's."""

from __future__ import annotations


class Breaker:
    """Closed, open for a while after too many faults in a row, then half open: one request tries.

    Args:
        faults: in a row that open it.
        pause_s: how long it stays open; doubled with every trial that fails, up to eight times.
    """

    def __init__(self, faults: int = 3, pause_s: float = 5.0) -> None:
        self._limit, self._pause_s = faults, pause_s
        self.faults = 0
        """In a row."""
        self.opened = 0
        """How often it has opened."""
        self._until: float | None = None
        self._times = 0
        self._trying = False

    def may_send(self, now: float) -> bool:
        """Whether a request may be sent (s, any clock)."""
        return self._until is None or (now >= self._until and not self._trying)

    @property
    def state(self) -> str:
        """closed, open or trying."""
        return "closed" if self._until is None else "trying" if self._trying else "open"

    @property
    def tripped(self) -> bool:
        """Whether it is not closed."""
        return self._until is not None

    def sent(self) -> None:
        """A request was sent; while it is open, that is the one that tries."""
        if self._until is not None:
            self._trying = True

    def succeeded(self) -> None:
        """The engine answered as it should."""
        self.faults = self._times = 0
        self._until, self._trying = None, False

    def failed(self, now: float) -> bool:
        """The engine failed a request; whether that opens the breaker."""
        self.faults += 1
        was_trying, self._trying = self._trying, False
        if self.faults < self._limit and not was_trying:
            return False
        if self._until is not None and not was_trying:  # A request from before it opened.
            return False
        self._until = now + self._pause_s * 2 ** min(self._times, 3)
        self._times += 1
        self.opened += 1
        return True

    def gave_up(self) -> None:
        """The request that tried has ended without saying anything about the engine."""
        self._trying = False
