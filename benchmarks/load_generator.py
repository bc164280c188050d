"""Requests at a fixed concurrency, from one lean process; it reads the CPU clocks of those that it asks."""

from __future__ import annotations

import asyncio
import statistics
import time

import orjson
from pydantic import BaseModel

from .fake_engine import MODEL
from .lean_http import Asking, post

PATH = b"/v1/completions"

PROMPT = " ".join(f"word{k % 10}" for k in range(100))
"""About as long as a question."""

TEXT = b'"text":"'


class Stretch(BaseModel):
    """Some requests to one server, one after another on each connection.

    Attributes:
        port: of the server.
        pid: of its process, whose CPU time is read; 0: of none.
        requests: how many.
        concurrency: connections.
        tokens: of each answer.
        stream: whether it is streamed.
    """

    port: int
    pid: int
    requests: int
    concurrency: int
    tokens: int
    stream: bool


class Taken(BaseModel):
    """What a stretch took.

    Attributes:
        cpu_s: CPU time of the server's process.
        seconds: from the first request to the last answer.
        p50_s: median time from a request to the end of its answer.
        most_open: streams that had begun and not ended, at most.
        rss: resident memory of the process while all streams were open, bytes; 0 if they never were.
        bad: answers that were not whole.
    """

    cpu_s: float
    seconds: float
    p50_s: float
    most_open: int
    rss: int
    bad: int


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its threads so far, user and system, to the ns (Linux's clock of another process)."""
    return time.clock_gettime((~pid << 3) | 2) if pid else 0.0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * 4_096


class _Caller(Asking):
    """One connection."""

    def __init__(self, driver: _Driver) -> None:
        super().__init__()
        self._driver = driver
        self._began = 0.0
        self._begun = False

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._begun = False
        self.transport.write(self._driver.request)

    def on_body(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._driver.opened()
        super().on_body(data)

    def answered(self, body: bytes) -> None:
        self._driver.answered(self, self._whole(body), time.perf_counter() - self._began)

    def _whole(self, body: bytes) -> bool:
        stretch = self._driver.stretch
        if self.status != 200:
            return False
        if not stretch.stream:
            return b'"completion_tokens":%d' % stretch.tokens in body
        return body.count(TEXT) == stretch.tokens and body.endswith(b"data: [DONE]\n\n")

    def connection_lost(self, error: Exception | None) -> None:
        self._driver.lost()


class _Driver:
    """A stretch in progress."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": stretch.tokens, "stream": stretch.stream}
        self.request = post(PATH, orjson.dumps(fields))
        self._left = stretch.requests
        self._open = self._most_open = self._rss = self._bad = 0
        self._times: list[float] = []
        self._done = asyncio.get_running_loop().create_future()

    async def run(self) -> Taken:
        stretch, loop = self.stretch, asyncio.get_running_loop()
        callers: list[_Caller] = []
        for _ in range(stretch.concurrency):
            _, caller = await loop.create_connection(lambda: _Caller(self), "127.0.0.1", stretch.port)
            callers.append(caller)
        cpu, started = cpu_seconds(stretch.pid), time.perf_counter()
        for k, caller in enumerate(callers):
            self._left -= 1
            caller.begin()
            if k % 64 == 63:  # Many do not come at one instant.
                await asyncio.sleep(0.02)
        await self._done
        seconds, cpu = time.perf_counter() - started, cpu_seconds(stretch.pid) - cpu
        for caller in callers:
            caller.transport.abort()
        return Taken(
            cpu_s=cpu,
            seconds=seconds,
            p50_s=statistics.median(self._times),
            most_open=self._most_open,
            rss=self._rss,
            bad=self._bad,
        )

    def opened(self) -> None:
        self._open += 1
        self._most_open = max(self._most_open, self._open)
        if self._open == self.stretch.requests and self.stretch.pid:
            self._rss = resident_bytes(self.stretch.pid)

    def answered(self, caller: _Caller, whole: bool, seconds: float) -> None:
        self._open -= 1
        self._bad += not whole
        self._times.append(seconds)
        if self._left:
            self._left -= 1
            caller.begin()
        elif len(self._times) == self.stretch.requests and not self._done.done():
            self._done.set_result(None)

    def lost(self) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError("a server closed a connection in the middle of the benchmark"))


async def _run(stretches: list[Stretch]) -> None:
    for stretch in stretches:
        taken = await _Driver(stretch).run()
        print(taken.model_dump_json(), flush=True)


def main(plan: str) -> None:
    """The program of its process: stretches in JSON; writes what each took, a line each."""
    import gc

    import uvloop

    stretches = [Stretch.model_validate(each) for each in orjson.loads(plan)]
    gc.disable()  # What it keeps holds no cycles.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(stretches))
