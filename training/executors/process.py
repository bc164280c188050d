"""Worker processes on this machine: the default."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any

from .executor import Executor, Lost, Result, Task, done

DIED = "a worker process died (out of memory?)"


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_count(workers: int | None) -> None:
    """Refuses a number of workers that is none.

    Raises:
        ValueError: below 1.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")


class ProcessExecutor(Executor):
    """A set of worker processes.

    With one worker everything runs in this process. More are *spawned*: a fork would copy the locks of the
    threads that draw the progress bar and that NumPy and Arrow keep, and could wait on them for ever; a
    spawned worker costs about a second once. Compile the simulator's core before, or every worker does.

    When a worker dies, so do the others (a pool's pipes may be damaged), and new ones do the lost tasks again.
    """

    def __init__(self, count: int | None = None) -> None:
        """Prepares `count` workers, None for one per core.

        Raises:
            ValueError: the count is below 1.
        """
        check_count(count)
        self._count = core_count() if count is None else count
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()

    @property
    def count(self) -> int:
        """Worker processes."""
        return self._count

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the workers; after an error or an interrupt without waiting for tasks in progress."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        self._pool = None
        if kind is not None:
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results of `function(task)`, as they come; a single worker or a single task needs no other process."""
        if self._count == 1 or len(tasks) <= 1:
            yield from map(function, tasks)
        else:
            yield from super().run(function, tasks)

    def _submit(self, payload: bytes) -> Future[Any]:
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            self._pool = self._new_pool()
        try:
            return self._pool.submit(done, payload)
        except BrokenProcessPool:  # All of its tasks are lost, and tell so one by one.
            self._pool.shutdown(wait=False)
            self._pool = self._new_pool()
            return self._pool.submit(done, payload)

    def _new_pool(self) -> ProcessPoolExecutor:
        # It starts a process only for a task that finds none idle.
        return ProcessPoolExecutor(
            self._count, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )

    def _ended(self, handles: Collection[Future[Any]]) -> Collection[Future[Any]]:
        return wait(handles, return_when=FIRST_COMPLETED).done

    def _result(self, handle: Future[Any]) -> Any:
        try:
            return handle.result()
        except BrokenProcessPool:
            raise Lost(DIED) from None

    def _cancel(self, handles: Collection[Future[Any]]) -> None:
        for handle in handles:
            handle.cancel()


def _start_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent cannot tell its workers, and they would wait for tasks for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
