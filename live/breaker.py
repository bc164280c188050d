"""A circuit breaker per engine: it counts the engine's faults, never the client's."""

from __future__ import annotations

ORDINARY = 0
"""The ticket of a request that tries nothing."""


class Breaker:
    """Closed, open for a while after too many faults in a row, then half open: one request tries.

    Every request that is assigned gets a ticket, and what becomes of it is told with the ticket. So one from before
    the breaker opened, which ends late, is not taken for the one that tries. Without a ticket it is.

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
        self._tickets = ORDINARY
        self._trying: int | None = None

    def may_send(self, now: float) -> bool:
        """Whether a request may be sent (s, any clock)."""
        return self._until is None or (now >= self._until and self._trying is None)

    @property
    def state(self) -> str:
        """closed, open or trying."""
        return "closed" if self._until is None else "open" if self._trying is None else "trying"

    @property
    def tripped(self) -> bool:
        """Whether it is not closed."""
        return self._until is not None

    def lets(self, ticket: int) -> bool:
        """Whether a request that was given this ticket may still be sent."""
        return self._until is None or ticket == self._trying

    def sent(self, now: float) -> int:
        """A request is assigned; the first one after the pause is the one that tries. Returns its ticket."""
        if self._until is None or not self.may_send(now):  # The router had chosen the engine before it opened.
            return ORDINARY
        self._tickets += 1
        self._trying = self._tickets
        return self._tickets

    def succeeded(self, ticket: int | None = None) -> None:
        """The engine answered as it should; None: it is known to be well again."""
        if self._until is not None and ticket is not None and ticket != self._trying:
            return
        self.faults = self._times = 0
        self._until = self._trying = None

    def failed(self, now: float, ticket: int | None = None) -> bool:
        """The engine failed a request; whether that opens the breaker."""
        self.faults += 1
        if self._until is None:
            if self.faults < self._limit:
                return False
        elif self._trying is None or ticket not in (None, self._trying):
            return False
        self._trying = None
        self._until = now + self._pause_s * 2 ** min(self._times, 3)
        self._times += 1
        self.opened += 1
        return True

    def gave_up(self, ticket: int | None = None) -> None:
        """A request has ended, perhaps without saying anything about the engine; if it still tries, another one may."""
        if ticket in (None, self._trying):
            self._trying = None
