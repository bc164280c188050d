"""What the client saw of a request; a line of the client's file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["finished", "failed", "rejected"]


@dataclass(slots=True)
class Observation:
    """One request.

    Attributes:
        index: in the trace.
        id: under which router and engines know it.
        due: when it was to be sent, ps of the trace.
        sent: when it was sent, ps of the trace as all times here; −1: not reached.
        first: when the first piece of the answer came.
        last: when the last one came.
        end: when the answer had ended, or all hope for it.
        max_stall: longest time between two pieces, ps.
        generated: tokens that the answer counts, or its pieces if it broke off.
        http_status: 0: there was no answer.
        status: finished: all tokens came, exactly as many as were asked for; rejected: it was refused before any engine
            had it; failed: everything else.
        error: why it is not finished.
    """

    index: int
    id: str
    due: int
    sent: int = -1
    first: int = -1
    last: int = -1
    end: int = -1
    max_stall: int = 0
    generated: int = 0
    http_status: int = 0
    status: Status = "failed"
    error: str | None = None

    @property
    def lateness(self) -> int:
        """Time from when it was to be sent to when it was, ps."""
        return self.sent - self.due

    def line(self) -> dict[str, Any]:
        """As it is written."""
        return asdict(self)
