"""A router over emulated engines in processes of their own, and a client that checks every answer."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from disaggroute.live import record_log
from disaggroute.live.emulated_cluster import EmulatedCluster
from disaggroute.live.emulator import tokens
from disaggroute.live.server import Doors, serve
from disaggroute.live.service import Service, ServiceOptions

PROFILE, MODEL, KEY = "a40-qwen2.5-3b", "emulated", "master"

WATCH = {"poll_interval_s": 0.05, "silent_s": 5.0, "stalled_s": 60.0, "return_polls": 2}


@dataclass
class RouterThread:
    """A router that runs in a thread of this process."""

    service: Service
    clients: str
    operators: str
    records: Path
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event


@contextmanager
def router(engines: EmulatedCluster, records: Path, **options: Any) -> Iterator[RouterThread]:
    """Serves on emulated engines."""
    started: list[RouterThread] = []
    ready = threading.Event()
    settings = ServiceOptions.model_validate({"policy": "marginal-cost", "watch": WATCH, "pause_s": 0.5} | options)
    service = Service(engines.cluster(), settings, records)

    async def main() -> None:
        stop = asyncio.Event()

        def tell(clients: str, operators: str) -> None:
            loop = asyncio.get_running_loop()
            started.append(RouterThread(service, clients, operators, records, loop, stop))
            ready.set()

        try:
            await serve(
                service, Doors(port=0, admin_port=0, admin_keys=[KEY]), wait_s=60, ready=tell, stop=stop
            )
        finally:
            ready.set()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(120) and started
    try:
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(started[0].stop.set)
        thread.join(120)
        assert not thread.is_alive()


@dataclass
class Tally:
    """What became of the requests that were sent.

    Attributes:
        sent: ids.
        right: answers that are what the model says, token by token.
        refused: told by status or by an error event that it did not work.
        left: requests whose client went away.
        wrong: ids of answers that are neither whole and right nor an error.
    """

    sent: list[str] = field(default_factory=list)
    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left: int = 0
    wrong: list[str] = field(default_factory=list)

    def text(self, recorded: Counter[str]) -> str:
        """A line for the summary."""
        refused = ", ".join(f"{count} × {why}" for why, count in self.refused.items()) or "none"
        twice = sum(count - 1 for count in recorded.values())
        lost = sum(name not in recorded for name in self.sent)
        return (
            f"{len(self.sent)} requests sent: {self.right} right, {len(self.wrong)} wrong, refused or broken off "
            f"{refused}, {self.left} clients left; {len(recorded)} recorded, {lost} without a record, {twice} twice"
        )


def expected(prompt: list[int], count: int) -> str:
    """What the emulated model answers to a prompt."""
    answer = tokens.Answer(tokens.digest(prompt))
    return tokens.decode([answer.next_token() for _ in range(count)])


async def load(url: str, count: int, concurrency: int, prefix: str, *, leave_every: int = 0) -> Tally:
    """Sends requests, so many at a time; every answer is checked.

    Args:
        url: of the router.
        count: requests.
        concurrency: at a time.
        prefix: of their ids.
        leave_every: every so many-th client leaves before its answer is whole; 0: none.
    """
    tally = Tally()
    gate = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(k: int) -> None:
            async with gate:
                name = f"{prefix}-{k}"
                prompt = [3 + (k * 7 + j) % 250 for j in range(20 + 13 * (k % 40))]
                size = 2 + k % 12
                body = {"model": MODEL, "prompt": prompt, "max_tokens": size, "ignore_eos": True, "stream": k % 2 == 0}
                tally.sent.append(name)
                if leave_every and k % leave_every == 0:
                    await leave(url, body, name, (k % 7) * 0.01)
                    tally.left += 1
                else:
                    await check(session, url, body, name, expected(prompt, size), tally)

        await asyncio.gather(*(one(k) for k in range(count)))
    return tally


async def leave(url: str, body: dict[str, Any], name: str, after_s: float) -> None:
    """Sends a whole request and closes the connection, whatever has come by then."""
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-request-id: {name}\r\ncontent-length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)
    await writer.drain()
    await asyncio.sleep(after_s)
    writer.close()


async def check(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], name: str, text: str, tally: Tally
) -> None:
    """Sends a request and counts its answer."""
    try:
        async with session.post(f"{url}/v1/completions", json=body, headers={"x-request-id": name}) as answer:
            raw = await answer.read()
    except aiohttp.ClientError as error:
        tally.wrong.append(f"{name}: {type(error).__name__}: {error}")
        return
    if answer.status != 200:
        json.loads(raw)["error"]["message"]
        tally.refused[str(answer.status)] += 1
        return
    if not body["stream"]:
        got = json.loads(raw)["choices"][0]["text"]
    else:
        events = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part]
        if not events or events[-1] != b"[DONE]":
            tally.wrong.append(f"{name}: no end")
            return
        said = [json.loads(part) for part in events[:-1]]
        if any("error" in each for each in said):
            tally.refused["an error event"] += 1
            return
        got = "".join(each["choices"][0]["text"] for each in said if each["choices"])
    if got == text:
        tally.right += 1
    else:
        tally.wrong.append(f"{name}: {got!r} instead of {text!r}")


def recorded(path: Path) -> Counter[str]:
    """How often each request is in the file."""
    return Counter(record["id"] for record in record_log.read(path) if "kind" not in record)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Writes to a file fail as on a full disk."""
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") == os.path.realpath(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    os.write = write  # type: ignore[assignment]
    try:
        yield
    finally:
        os.write = real
