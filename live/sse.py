"""The event stream of a completion: forwarded as bytes, read only as far as the router must.

An event ends with an empty line, and inside its JSON no line ends, so events are counted and cut by that alone. The
usual event carries a piece of the answer (`"choices":[{`); all others (errors, usage, the end) are looked at.
"""

from __future__ import annotations

import json
from typing import Any

END = b"\n\n"
DATA = b"data:"
DONE = b"[DONE]"
PIECE = b'"choices":[{'
ROLE = b'"role":'


class EventStream:
    """Cuts a stream into whole events and keeps what it says.

    Args:
        show_usage: whether the client asked for the event with the final counts; the router always does.
    """

    def __init__(self, show_usage: bool) -> None:
        self._show_usage = show_usage
        self._rest = b""
        self.pieces = 0
        """Events with a piece of the answer; an engine gives about one per token."""
        self.done = False
        """Whether the stream has said that it is complete."""
        self.error: str | None = None
        """What the engine said went wrong."""
        self.usage: dict[str, Any] | None = None
        """The engine's final counts."""

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they come.

        Args:
            data: bytes of the stream.

        Returns:
            The whole events among them that are the client's, as they came.
        """
        if self.pieces and not self._rest and PIECE in data and data.find(END) == len(data) - len(END):
            self.pieces += 1  # One whole event, as nearly always.
            return data
        if self._rest:
            data = self._rest + data
        if data.endswith(END):
            self._rest = b""
        else:
            cut = data.rfind(END)
            if cut < 0:
                self._rest = data
                return b""
            self._rest = data[cut + 2 :]
            data = data[: cut + 2]
        pieces = data.count(PIECE)
        if pieces == data.count(END) and DONE not in data:
            self.pieces += pieces - (data.count(ROLE) if self.pieces == 0 else 0)
            return data
        return b"".join([event + END for event in data.split(END)[:-1] if self._look(event)])

    @property
    def cut_short(self) -> bytes:
        """Bytes of an event that has not come whole."""
        return self._rest

    def _look(self, event: bytes) -> bool:
        """Notes what an event says; whether it is the client's."""
        if PIECE in event:
            self.pieces += not (self.pieces == 0 and ROLE in event)
            return True
        body = b"".join(line[len(DATA) :].strip() for line in event.splitlines() if line.startswith(DATA))
        if body == DONE:
            self.done = True
            return True
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return True  # A comment, or something of the engine's own: not ours to judge.
        if not isinstance(said, dict):
            return True
        if "error" in said:
            self.error = error_text(said["error"])
            return True
        if isinstance(said.get("usage"), dict):
            self.usage = said["usage"]
            return self._show_usage or bool(said.get("choices"))
        if said.get("choices"):
            self.pieces += 1
        return True


def error_text(error: Any) -> str:
    """What an error object of an engine says, in one line of at most 500 characters."""
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message if message is not None else "").split())[:500] or "no reason given"
