"""Worker processes: the same function over many tasks, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.process import BaseProcess
from typing import TypeVar

from ..envs.error_text import error_text

Task = TypeVar("Task")
Result = TypeVar("Result")


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | Workers | None) -> int:
    """The number of processes to start.

    Args:
        workers: how many, or None for one per core; or processes that there are.

    Raises:
        ValueError: below 1.
    """
    if isinstance(workers, Workers):
        return workers.count
    if workers is None:
        return core_count()
    if workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    return workers


class Workers:
    """A set of worker processes, started when first needed.

    With one worker everything runs in this process. More are *spawned*: a fork would copy the locks of the
    threads that draw the progress bar and that NumPy and Arrow keep, and could wait on them for ever; a
    spawned worker costs about a second once. Compile the simulator's core before, or every worker does.

    Use as a context manager; leaving it through an exception stops the runs in progress.
    """

    def __init__(self, count: int | None = None) -> None:
        """Prepares `count` workers, None for one per core.

        Raises:
            ValueError: the count is below 1.
        """
        self.count = check_workers(count)
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()

    @staticmethod
    def of(workers: int | Workers | None) -> AbstractContextManager[Workers]:
        """As many workers as named, ended when the context is left; or those given, which go on after it.

        Raises:
            ValueError: the count is below 1.
        """
        return nullcontext(workers) if isinstance(workers, Workers) else Workers(workers)

    def __enter__(self) -> Workers:
        """Starts nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the workers; after an error or an interrupt without waiting for runs in progress."""
        if self._pool is None:
            return
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results of `function(task)`, as they come.

        Args:
            function: importable by name (it travels to the workers).
            tasks: what to do; each must pickle.

        Raises:
            RuntimeError: a worker died, mostly because memory ran out.
        """
        if self.count == 1 or len(tasks) <= 1:
            yield from map(function, tasks)
            return
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(
                min(self.count, len(tasks)),
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
            )
        try:
            for future in as_completed([self._pool.submit(_call, function, task) for task in tasks]):
                yield future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker process died (out of memory?); fewer workers may help, and the same command goes on from "
                "what is finished"
            ) from None


def _call(function: Callable[[Task], Result], task: Task) -> Result:
    """The function's result; an error that could not travel to the parent is told in words."""
    try:
        return function(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(error_text(error)) from error
        raise


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
