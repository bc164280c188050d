"""The interface of what runs the tasks of a sweep: the same function over many tasks, wherever there are cores."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self, TypeVar

from ...envs.error_text import error_text

Task = TypeVar("Task")
Result = TypeVar("Result")

MOST_LOSSES = 3
"""Times that a task may be lost with its worker before it is given up: then the task itself is at fault."""

Handle = Any
"""A task on its way, as an implementation names it."""


class Lost(Exception):
    """A task's worker is gone, and its result with it; the text says how."""


class Executor(ABC):
    """Runs a function over many tasks.

    A task whose worker is lost is done again elsewhere, up to `MOST_LOSSES` times. Only so many tasks are under way as
    keep the workers busy, however many there are. What a task returns is all that it leaves: the caller alone writes.

    Workers are started when they are first needed. Use as a context manager; leaving it through an exception stops
    the tasks in progress.

    Attributes:
        lost: tasks that were done again, so far.
    """

    lost = 0

    @property
    @abstractmethod
    def count(self) -> int:
        """Tasks that run at a time.

        Raises:
            OSError: where the workers are to be found, nothing answers.
        """

    @property
    def most_under_way(self) -> int:
        """Tasks handed over at a time: some wait, so that no worker does."""
        return 2 * self.count

    def __enter__(self) -> Self:
        """Starts nothing yet."""
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends the workers; after an error or an interrupt without waiting for tasks in progress."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results of `function(task)`, as they come.

        Args:
            function: importable by name (it travels to the workers); the same task gives the same result.
            tasks: what to do; each must pickle, and so must its result.

        Raises:
            RuntimeError: the workers of one task died again and again, mostly because memory ran out.
            OSError: where the workers are to be found, nothing answers.
        """
        waiting = deque(range(len(tasks)))
        under_way: dict[Handle, int] = {}
        losses: Counter[int] = Counter()
        try:
            while waiting or under_way:
                most = self.most_under_way
                while waiting and len(under_way) < most:
                    place = waiting.popleft()
                    payload = pickle.dumps((function, tasks[place]), pickle.HIGHEST_PROTOCOL)
                    under_way[self._submit(payload)] = place
                for handle in self._ended(under_way):
                    place = under_way.pop(handle)
                    try:
                        result = self._result(handle)
                    except Lost as lost:
                        losses[place] += 1
                        self.lost += 1
                        if losses[place] == MOST_LOSSES:
                            raise RuntimeError(
                                f"{lost}, {MOST_LOSSES} times in the same run; fewer workers may help, and the same "
                                "command goes on from what is finished"
                            ) from None
                        waiting.appendleft(place)
                        continue
                    yield result
        finally:
            self._cancel(under_way)

    @abstractmethod
    def _submit(self, payload: bytes) -> Handle:
        """Hands a task over, for `done` in a worker; a handle is hashable."""

    @abstractmethod
    def _ended(self, handles: Collection[Handle]) -> Collection[Handle]:
        """Waits until some have ended; those."""

    @abstractmethod
    def _result(self, handle: Handle) -> Any:
        """The result of one that has ended; raises its error, or `Lost`."""

    @abstractmethod
    def _cancel(self, handles: Collection[Handle]) -> None:
        """Nobody waits for these any more."""


def done(payload: bytes) -> Any:
    """The result of a task, in a worker; an error that could not travel to the caller is told in words."""
    try:
        function, task = pickle.loads(payload)
        return function(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(error_text(error)) from error
        raise
