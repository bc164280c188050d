"""Threads that do parts of one compiled call at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

Part = Callable[[int, int, int], int]
"""A compiled function that lets other threads run: address, first and end."""


class Crew:
    """Threads that wait for parts of a piece of work; the caller does the first part itself.

    They end with the object, and do not keep a program alive.

    Args:
        threads: with the caller, ≥ 1.
    """

    def __init__(self, threads: int) -> None:
        self._members = [_Member() for _ in range(threads - 1)]

    def run(self, part: Part, address: int, count: int) -> int:
        """Does `part(address, first, end)` for all of 0 … count − 1, cut into as many pieces as there are threads.

        Args:
            part: compiled, without the interpreter's lock.
            address: its first argument.
            count: how many there are to do.

        Returns:
            The sum of what the pieces return.

        Raises:
            Exception: what a piece raised.
        """
        pieces = len(self._members) + 1
        cuts = [count * k // pieces for k in range(pieces + 1)]
        for member, first, end in zip(self._members, cuts[1:], cuts[2:], strict=False):
            member.begin(part, address, first, end)
        try:
            done = part(address, cuts[0], cuts[1])
        finally:
            others = [member.wait() for member in self._members]  # whatever happens, nobody is left at work
        return done + sum(others)

    def close(self) -> None:
        """Ends the threads."""
        for member in self._members:
            member.end()
        self._members = []

    def __del__(self) -> None:
        """Ends the threads."""
        self.close()


class _Member:
    """One thread. Two locks hand over: one is open while there is work, the other while there is a result."""

    def __init__(self) -> None:
        self._work, self._result = threading.Lock(), threading.Lock()
        self._work.acquire()
        self._result.acquire()
        self._task: tuple[Part, int, int, int] | None = None
        self._done: int | BaseException = 0
        threading.Thread(target=_serve, args=(self,), daemon=True, name="disaggroute-step").start()

    def begin(self, part: Part, address: int, first: int, end: int) -> None:
        self._task = part, address, first, end
        self._work.release()

    def wait(self) -> int:
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                self._result.acquire()
                break
            except KeyboardInterrupt as error:  # The piece goes on and writes: it is waited for first.
                interrupt = error
        if interrupt is not None:
            raise interrupt
        if isinstance(self._done, BaseException):
            raise self._done
        return self._done

    def end(self) -> None:
        self._task = None
        self._work.release()


def _serve(member: _Member) -> None:
    while True:
        member._work.acquire()
        if member._task is None:
            return
        part, *arguments = member._task
        try:
            member._done = part(*arguments)
        except BaseException as error:  # told to whom waits
            member._done = error
        member._result.release()
