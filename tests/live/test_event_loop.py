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
