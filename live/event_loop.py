"""Event loops: uvloop's where it is installed, and one in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that nobody runs yet."""
    try:
        import uvloop
    except ImportError:  # Not on every system.
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop in a thread, which other threads ask to do things.

    The thread dies with the process, whether or not it is closed.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for its end.

        It is cancelled when the wait is interrupted, as by Ctrl-C.

        Returns:
            What it returned, or raises what it raised.

        Raises:
            RuntimeError: the thread does not run in this process, or would wait for itself.
        """
        problem = self._problem()
        if problem:
            story.close()
            raise RuntimeError(problem)
        future: Future[tuple[list[T], BaseException | None]] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(_caught(story), self._loop)
            result, error = future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise
        if error is not None:
            raise error
        return result[0]

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs a last coroutine and ends the thread; in this very thread, nothing is waited for.

        Args:
            last: what is left to do; an error of it ends the thread all the same. It is not done where the thread does
                not run, as in a process that was forked.
        """
        if not self._thread.is_alive():
            last.close()
            return
        future = asyncio.run_coroutine_threadsafe(last, self._loop)
        if threading.current_thread() is self._thread:  # An object was collected here.
            future.add_done_callback(self._stop)
            return
        try:
            with suppress(Exception):
                future.result()
        finally:
            self._stop(future)
            self._thread.join()

    def _problem(self) -> str | None:
        """Why nothing can be asked of the thread."""
        if threading.current_thread() is self._thread:
            return f"the thread {self._thread.name!r} would wait for itself; ask it from another one"
        if not self._thread.is_alive():
            return (
                f"the thread {self._thread.name!r} does not run: it has ended, or is that of the process from which "
                "this one was forked; close() what it belongs to and begin anew"
            )
        return None

    def _stop(self, _: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _caught(story: Coroutine[Any, Any, T]) -> tuple[list[T], BaseException | None]:
    """What a coroutine returned, or the error of it that would end the loop."""
    try:
        return [await story], None
    except (KeyboardInterrupt, SystemExit) as error:
        return [], error
