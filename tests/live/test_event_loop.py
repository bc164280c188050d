"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from disaggroute.live.event_loop import LoopThread


def threads() -> int:
    return sum(thread.name == "loop" for thread in threading.enumerate())


async def nothing() -> None:
    pass


def test_a_coroutine_runs_there_and_its_result_or_error_comes_back() -> None:
    loop = LoopThread("loop")

    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("no")

    assert loop.run(name()) == "loop"
    with pytest.raises(ValueError, match=r"^no$"):
        loop.run(fail())
    loop.close(nothing())
    assert threads() == 0


def test_an_interrupted_wait_cancels_what_was_waited_for() -> None:
    loop = LoopThread("loop")
    cancelled = threading.Event()

    async def hang() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        loop.run(hang())
    assert cancelled.wait(60)
    loop.close(nothing())


def test_an_end_takes_along_what_still_runs_and_survives_an_error() -> None:
    loop = LoopThread("loop")
    ended = threading.Event()
    kept: list[asyncio.Task[None]] = []

    async def run_on() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def begin() -> None:
        kept.append(asyncio.create_task(run_on()))
        await asyncio.sleep(0)

    async def fail() -> None:
        raise ValueError("no")

    loop.run(begin())
    loop.close(fail())
    assert ended.is_set() and threads() == 0


def test_it_can_be_ended_from_its_own_thread() -> None:
    loop = LoopThread("loop")
    ended = threading.Event()

    async def last() -> None:
        ended.set()

    async def end() -> None:
        loop.close(last())

    loop.run(end())
    assert ended.wait(60)
    loop._thread.join(60)
    assert threads() == 0


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    loop = LoopThread("loop")

    async def inside() -> None:
        loop.run(nothing())

    with pytest.raises(RuntimeError, match="the thread 'loop' would wait for itself; ask it from another one"):
        loop.run(inside())
    loop.close(nothing())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_not_the_thread(error: type[BaseException]) -> None:
    loop = LoopThread("loop")

    async def end() -> None:
        raise error

    with pytest.raises(error):
        loop.run(end())
    assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
    loop.close(nothing())


def test_one_that_has_ended_is_told_and_closed_again_for_nothing() -> None:
    loop = LoopThread("loop")
    loop.close(nothing())
    loop.close(nothing())
    with pytest.raises(RuntimeError, match="the thread 'loop' does not run: it has ended, or is that of the process"):
        loop.run(nothing())
