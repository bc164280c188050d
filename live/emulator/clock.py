"""Engine time: wall time by a scale, in picoseconds; it can stand still."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_PS_PER_NS = 1_000
_NS_PER_S = 1_000_000_000


class EngineClock:
    """Engine time of an emulated engine.

    Args:
        scale: wall seconds of one engine second.
        wall: nanoseconds of a clock that never goes back.
    """

    def __init__(self, scale: float, wall: Callable[[], int] = time.monotonic_ns) -> None:
        self.scale = scale
        self._wall = wall
        self._ps_per_ns = _PS_PER_NS / scale
        self._stopped: int | None = None
        self.restart()

    def restart(self) -> None:
        """Time is 0 now."""
        self._start = self._wall()
        self._skipped = 0
        self._last = 0

    def now(self) -> int:
        """Engine time, ps; never goes back."""
        if self._stopped is None:
            elapsed = self._wall() - self._start - self._skipped
            self._last = max(self._last, int(elapsed * self._ps_per_ns))
        return self._last

    def seconds_until(self, when: int) -> float:
        """Wall seconds until an engine time (ps), not below 0."""
        return max(0.0, (when - self.now()) / self._ps_per_ns / _NS_PER_S)

    def wall_seconds(self, span: int) -> float:
        """Wall seconds of a span of engine time, ps."""
        return span / self._ps_per_ns / _NS_PER_S

    @property
    def stopped(self) -> bool:
        """Whether time stands still."""
        return self._stopped is not None

    def stop(self) -> None:
        """Time stands still until `go`."""
        if self._stopped is None:
            self.now()
            self._stopped = self._wall()

    def go(self) -> None:
        """Time goes on from where it stood."""
        if self._stopped is not None:
            self._skipped += self._wall() - self._stopped
            self._stopped = None


class Alarm:
    """Calls a function once at a set time, exact to some tens of microseconds where the system has timer descriptors.

    The timers of an event loop are exact to a millisecond only, which is a noticeable part of a decode step.

    Args:
        ring: what is called.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._timer = _TimerDescriptor.open()
        if self._timer is not None:
            self._loop.add_reader(self._timer.number, self._ringing)

    def set(self, seconds: float) -> None:
        """Rings in this many wall seconds, instead of at any time set before."""
        if self._timer is not None:
            self._timer.set(max(1, int(seconds * _NS_PER_S)))
        else:
            self._cancel()
            self._handle = self._loop.call_later(seconds, self._ring)

    def unset(self) -> None:
        """Rings no more."""
        if self._timer is not None:
            self._timer.set(0)
        else:
            self._cancel()

    def close(self) -> None:
        """Rings no more, ever."""
        self._cancel()
        if self._timer is not None:
            self._loop.remove_reader(self._timer.number)
            self._timer.close()
            self._timer = None

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ringing(self) -> None:
        if self._timer is not None and self._timer.read():
            self._ring()


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: interval and value, each in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class _TimerDescriptor:
    """A timer that is a file descriptor (Linux, timerfd_create(2))."""

    _NONBLOCK = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library = library
        self.number = number

    @classmethod
    def open(cls) -> _TimerDescriptor | None:
        """A timer, or None where there are none."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            library = ctypes.CDLL(None, use_errno=True)
            number = library.timerfd_create(time.CLOCK_MONOTONIC, cls._NONBLOCK)
        except (OSError, AttributeError):
            return None
        return cls(library, number) if number >= 0 else None

    def set(self, nanoseconds: int) -> None:
        """Rings in this many nanoseconds; 0: never."""
        seconds, rest = divmod(nanoseconds, _NS_PER_S)
        spec = _TimerSpec(0, 0, seconds, rest)
        self._library.timerfd_settime(self.number, 0, ctypes.byref(spec), None)

    def read(self) -> bool:
        """Whether it has rung since the last call."""
        try:
            return bool(os.read(self.number, 8))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self.number)
