"""An engine in a few lines that does what a test tells it; by default what vLLM does."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Act = Callable[["ScriptedEngine", dict[str, Any], Writer], Awaitable[None]]

MODEL, BLOCK, BLOCKS = "tiny", 16, 101


class ScriptedEngine:
    """Listens on a free port; `acts` replace its next answers to completions, one each."""

    def __init__(self, *, version: str = "0.32.0", model: str = MODEL, block_size: int = BLOCK) -> None:
        self.acts: list[Act] = []
        self.always: Act | None = None
        self.legs: list[dict[str, Any]] = []
        """Bodies of the completions that were asked for."""
        self.headers: list[bytes] = []
        self.aborted = asyncio.Event()
        """A client went away in the middle of a leg."""
        self.version, self.model, self.block_size = version, model, block_size
        self.metrics = metrics(block_size)
        self.silent = False
        """Whether questions other than completions hang."""
        self.says: dict[str, tuple[int, bytes]] = {}
        """Status and body for other questions, by path, in place of the usual ones."""
        self.asked: list[tuple[str, bytes]] = []
        """Path and body of the other questions but `/metrics`."""
        self.url = ""
        self.polls = 0
        self._count = itertools.count()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedEngine:
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Closes everything at once; `listen` starts it again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _connected(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        path = head.split()[1].decode()
        if path.startswith(("/v1/completions", "/v1/chat")):
            fields = json.loads(body)
            self.legs.append(fields)
            self.headers.append(head)
            act = self.acts.pop(0) if self.acts else self.always or usual
            leg = asyncio.create_task(act(self, fields, writer))
            gone = asyncio.create_task(reader.read(1))
            await asyncio.wait({leg, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not leg.done():
                leg.cancel()
                self.aborted.set()
                raise ConnectionError
            gone.cancel()
            await asyncio.wait({gone})
            if not gone.cancelled():
                gone.exception()
            await leg
            return
        if self.silent:
            await asyncio.sleep(3_600)
        if path != "/metrics":
            self.asked.append((path, body))
        if path in self.says:
            await whole(writer, *self.says[path])
        else:
            await whole(writer, 200, self._said(path, body))

    def _said(self, path: str, body: bytes) -> bytes:
        if path == "/metrics":
            self.polls += 1
            return self.metrics
        if path == "/tokenize":
            text = json.loads(body).get("prompt") or "".join(m["content"] for m in json.loads(body)["messages"])
            return json.dumps({"count": len(text.split()), "max_model_len": 1_000}).encode()
        if path == "/version":
            return json.dumps({"version": self.version}).encode()
        model = {"id": self.model, "object": "model", "max_model_len": 1_000}
        return json.dumps({"object": "list", "data": [model]}).encode()


def metrics(block_size: int = BLOCK, usage: str = "vllm:kv_cache_usage_perc", value: float = 0.25) -> bytes:
    labels = '{engine="0",model_name="tiny"}'
    return (
        f"# HELP {usage} KV.\n{usage}{labels} {value}\n"
        f"vllm:num_requests_running{labels} 3.0\n"
        f"vllm:num_requests_waiting{labels} 2.0\n"
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0\n'
        f'vllm:cache_config_info{{block_size="{block_size}",engine="0",num_gpu_blocks="{BLOCKS}"}} 1.0\n'
    ).encode()


async def whole(writer: Writer, status: int, body: bytes) -> None:
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
    await writer.drain()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(content: Any) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return event({"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def parameters(engine: ScriptedEngine) -> dict[str, Any]:
    """What a prefill leg of vLLM 0.32 hands over."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": "b3e5552c",
        "remote_request_id": f"cmpl-{next(engine._count)}",
        "remote_host": "127.0.0.1",
        "remote_port": 18110,
        "tp_size": 1,
        "unknown_to_us": {"kept": [1.5, None, "ü"]},
    }


def answer(tokens: int, **more: Any) -> bytes:
    text = "".join(f"{k} " for k in range(tokens))
    usage = {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens}
    choice = {"index": 0, "text": text, "finish_reason": "length"}
    return json.dumps({"id": "cmpl-1", "choices": [choice], "usage": usage, **more}).encode()


async def usual(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
    """As vLLM: a prefill leg, or an answer of `max_tokens` tokens."""
    asked = body.get("kv_transfer_params") or {}
    if asked.get("do_remote_decode"):
        await whole(writer, 200, answer(1, kv_transfer_params=parameters(engine)))
        return
    tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    if not body.get("stream"):
        await whole(writer, 200, answer(tokens))
        return
    writer.write(STREAM)
    for k in range(tokens):
        writer.write(chunk(piece(f"{k} ", "length" if k == tokens - 1 else None)))
        await writer.drain()
    usage = {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens}
    writer.write(chunk(event({"id": "cmpl-1", "choices": [], "usage": usage}) + event("[DONE]")) + b"0\r\n\r\n")
    await writer.drain()


def refuse(status: int, message: str = "no") -> Act:
    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        await whole(writer, status, json.dumps({"error": {"message": message, "code": status}}).encode())

    return act


async def drop(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
    writer.transport.abort()
    raise ConnectionError


async def hang(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
    await asyncio.sleep(3_600)


def without(**changes: Any) -> Act:
    """A prefill leg that hands over something else; None takes a field away."""

    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        handed = {key: value for key, value in (parameters(engine) | changes).items() if value is not None}
        await whole(writer, 200, answer(1, kv_transfer_params=handed))

    return act


def stream(*parts: bytes, then: str = "end") -> Act:
    """A stream of these bytes; then its end, a lost connection or silence."""

    async def act(engine: ScriptedEngine, body: dict[str, Any], writer: Writer) -> None:
        writer.write(STREAM)
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
            await asyncio.sleep(0.005)
        if then == "end":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        elif then == "drop":
            await drop(engine, body, writer)
        else:
            await hang(engine, body, writer)

    return act


Gate = asyncio.Event


def after(gate: Gate, then: Act = usual) -> Act:
    """Waits for a gate to open first."""

    async def act(engine: Any, body: dict[str, Any], writer: Any) -> None:
        await gate.wait()
        await then(engine, body, writer)

    return act
