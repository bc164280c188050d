"""The trace-event format of Chrome, which ui.perfetto.dev and chrome://tracing open, written as a stream.

Reference: "Trace Event Format", the document of the catapult project. Times are microseconds; here they come in ps
and are written exactly, with six decimals at most. Viewers sort events by time and keep the order of the file among
equal times: so a slice is begun after the one before it has ended, and a flow ends after it has started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

_BUFFERED = 1 << 20
"""Characters that are collected before they are written."""

_HEAD = '{"displayTimeUnit":"ms","traceEvents":[\n'


class TraceEvents:
    """Writes one file, event by event; a context manager.

    The same calls give the same bytes. Arguments of events are JSON texts, made once with `encode` where they repeat.

    Args:
        stream: where to write, binary.
        about: what the file says of itself besides its events.
    """

    def __init__(self, stream: BinaryIO, about: Mapping[str, Any] | None = None) -> None:
        self._stream = stream
        self._about = dict(about or {})
        self._parts: list[str] = [_HEAD]
        self._size = len(_HEAD)
        self.events = 0
        """Events written so far."""

    def __enter__(self) -> TraceEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._parts.append(f'\n],"otherData":{encode(self._about)}}}\n')
            self._flush()

    def name(self, pid: int, name: str, tid: int | None = None, place: int = 0) -> None:
        """Names a process, or one of its threads, and says at which place it is to be shown."""
        what = "process" if tid is None else "thread"
        thread = "" if tid is None else f'"tid":{tid},'
        for kind, argument in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
            self._put(f'{{"ph":"M","pid":{pid},{thread}"name":"{what}_{kind}","args":{encode(argument)}}}')

    def begin(self, pid: int, tid: int, time: int, name: str, arguments: str) -> None:
        """A slice begins; on one thread slices nest."""
        text = f'{{"ph":"B","pid":{pid},"tid":{tid},"ts":{microseconds(time)},"name":"{name}"'
        self._put(f'{text},"args":{arguments}}}')

    def end(self, pid: int, tid: int, time: int) -> None:
        """The slice that was begun last on this thread ends."""
        self._put(f'{{"ph":"E","pid":{pid},"tid":{tid},"ts":{microseconds(time)}}}')

    def instant(self, pid: int, tid: int, time: int, name: str, arguments: str) -> None:
        """A marker on a thread."""
        text = f'{{"ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{microseconds(time)},"name":"{name}"'
        self._put(f'{text},"args":{arguments}}}')

    def counter(self, pid: int, time: int, name: str, values: str) -> None:
        """New values of the series of a counter."""
        self._put(f'{{"ph":"C","pid":{pid},"ts":{microseconds(time)},"name":"{name}","args":{values}}}')

    def flow(self, pid: int, tid: int, time: int, identity: int, *, start: bool) -> None:
        """An arrow starts from, or ends at, the slice that is open on this thread."""
        kind = '"s"' if start else '"f","bp":"e"'
        text = f'{{"ph":{kind},"pid":{pid},"tid":{tid},"ts":{microseconds(time)}'
        self._put(f'{text},"id":{identity},"cat":"request","name":"request"}}')

    def _put(self, event: str) -> None:
        if self.events:
            self._parts.append(",\n")
        self._parts.append(event)
        self.events += 1
        self._size += len(event) + 2
        if self._size > _BUFFERED:
            self._flush()

    def _flush(self) -> None:
        self._stream.write("".join(self._parts).encode())
        self._parts.clear()
        self._size = 0


def microseconds(time: int) -> str:
    """A time in ps as a decimal number of microseconds, exactly."""
    whole, rest = divmod(time, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def encode(value: Any) -> str:
    """A value as JSON, without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
