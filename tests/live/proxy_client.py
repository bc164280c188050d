"""A router over scripted engines, and a client that speaks ASGI to it without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.control import client_app
from disaggroute.live.proxy import ApiKeys, Proxy
from disaggroute.live.service import Service, ServiceOptions

from .scripted_engine import MODEL, ScriptedEngine, event

PROMPT = [1, 2, 3, 4, 5]
PLAIN = {"prompt": PROMPT, "max_tokens": 4}
STREAMED = PLAIN | {"stream": True}
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}})
ERROR = event({"error": {"message": "KV load failed", "type": "InternalServerError", "code": 500}})
DONE = event("[DONE]")

QUICK = {"poll_interval_s": 0.01, "silent_s": 2.0, "stalled_s": 30.0, "return_polls": 1}

USUAL = {"policy": "round-robin", "watch": QUICK, "drain_s": 5.0, "decision_budget_s": 10.0}


@dataclass
class Answer:
    """What a client got."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Decoded events of a stream."""
        said = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line]
        return [each.decode() if each == b"[DONE]" else json.loads(each) for each in said]

    @property
    def text(self) -> str:
        """All of a streamed answer."""
        pieces = [each["choices"][0] for each in self.events if isinstance(each, dict) and each.get("choices")]
        return "".join(piece.get("text") or piece.get("delta", {}).get("content") or "" for piece in pieces)


class Call:
    """A request in progress, whose client may leave."""

    def __init__(
        self, proxy: Any, path: str, body: bytes, headers: dict[str, str], method: str, query: str = ""
    ) -> None:
        self.answer = Answer()
        self.first = asyncio.Event()
        """A piece of the body has come."""
        self._gone = asyncio.Event()
        self._sent = False
        self._body = body
        lines = [(key.lower().encode(), value.encode("latin-1")) for key, value in headers.items()]
        scope = {"type": "http", "path": path, "method": method, "headers": lines, "query_string": query.encode()}
        scope |= {"http_version": "1.1", "root_path": "", "scheme": "http", "server": ("test", 80), "client": ("t", 1)}
        self.task = asyncio.create_task(proxy(scope, self._receive, self._send))

    def leave(self) -> None:
        """The client closes the connection."""
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            assert self.answer.status == 0, "an answer began twice"
            self.answer.status, self.answer.headers = message["status"], dict(message["headers"])
            return
        assert self.answer.status and not self.answer.ended
        self.answer.body += message.get("body", b"")
        if message.get("body"):
            self.first.set()
        self.answer.ended = not message.get("more_body", False)


@dataclass
class Setup:
    """A running router and its engines."""

    service: Service
    proxy: Proxy
    engines: dict[str, ScriptedEngine]
    path: Path | None

    def call(self, body: Any, path: str = "/v1/completions", method: str = "POST", **headers: str) -> Call:
        """Sends a request; a mapping gets the model's name."""
        if isinstance(body, dict):
            body = json.dumps({"model": MODEL} | body).encode()
        return Call(self.proxy, path, body, {k.replace("_", "-"): v for k, v in headers.items()}, method)

    async def ask(self, body: Any, path: str = "/v1/completions", **headers: str) -> Answer:
        """Sends a request and waits for the answer's end."""
        call = self.call(body, path, **headers)
        await asyncio.wait_for(call.task, 30)
        assert call.answer.ended
        return call.answer

    @property
    def legs(self) -> dict[str, int]:
        """How many legs each engine has seen."""
        return {name: len(engine.legs) for name, engine in self.engines.items()}

    def records(self) -> list[dict[str, Any]]:
        """The records in the file, without its headers."""
        from disaggroute.live.record_log import read

        assert self.path is not None
        self.service.records.flush()
        return [record for record in read(self.path) if "kind" not in record]


def cluster_of(engines: dict[str, ScriptedEngine], **fields: Any) -> LiveCluster:
    pools: dict[str, list[dict[str, Any]]] = {}
    for name, engine in engines.items():
        pools.setdefault(name.partition("/")[0], []).append({"url": engine.url})
    return LiveCluster.load({"model": MODEL, "profile": "a40-qwen2.5-3b", **pools, **fields})


@asynccontextmanager
async def routed(
    pools: str = "1P2D",
    *,
    path: Path | None = None,
    keys: tuple[str, ...] = (),
    cluster: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Setup]:
    """A router over scripted engines: 1P2D, or 2M of mixed ones."""
    engines: dict[str, ScriptedEngine] = {}
    names = {"P": "prefill", "D": "decode", "M": "mixed"}
    count = ""
    for letter in pools:
        if letter.isdigit():
            count += letter
            continue
        for k in range(int(count)):
            engines[f"{names[letter]}/{k}"] = await ScriptedEngine().__aenter__()
        count = ""
    settings = ServiceOptions.model_validate(USUAL | options)
    service = Service(cluster_of(engines, **(cluster or {})), settings, path)
    try:
        await service.start(10.0)
        api_keys = ApiKeys(list(keys))
        yield Setup(service, Proxy(service, api_keys, client_app(service, api_keys)), engines, path)
    finally:
        await service.close()
        for engine in engines.values():
            await engine.kill()


async def until(condition: Any, what: str = "it") -> None:
    """Waits until a condition holds."""
    for _ in range(3_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} did not come about")


async def answered_at(setup: Setup, path: str, **headers: str) -> Answer:
    """The answer to a GET."""
    call = setup.call(b"", path, "GET", **headers)
    await call.task
    return call.answer


Test = Callable[[Setup], Coroutine[Any, Any, None]]


def run(test: Test, pools: str = "1P2D", **options: Any) -> None:
    """Runs a test on a router of its own."""

    async def main() -> None:
        async with routed(pools, **options) as setup:
            await test(setup)

    asyncio.run(main())
