"""Engines that do nothing but speak: vLLM's HTTP API and the two legs, as cheaply as possible, in one process.

A whole answer comes at once. Streams go on in steps, as an engine's do: at each step every stream gets its next token.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import orjson

from .lean_http import LAST_CHUNK, STREAM, Served, chunk, whole

MODEL = "fake"
BLOCK_SIZE, BLOCKS = 16, 40_001

_ABOUT = b'"object":"text_completion","created":1700000000,"model":"fake"'

PIECE = (
    b'data: {"id":"cmpl-0123456789abcdef",' + _ABOUT + b',"choices":[{"index":0,"text":" word","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"cmpl-0123456789abcdef",' + _ABOUT + b',"choices":[],'
    b'"usage":{"prompt_tokens":128,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)
DONE = b"data: [DONE]\n\n"


class FakeEngine:
    """One engine.

    Args:
        name: unlike that of all others.
        step_s: between the steps of its streams.
        groups: of streams, which take turns within a step.
    """

    def __init__(self, name: str, step_s: float, groups: int = 1) -> None:
        self._name = name
        self._tick_s = step_s / groups
        self._groups: list[dict[Served, list[Any]]] = [{} for _ in range(groups)]
        self._legs = itertools.count()
        self._answers: dict[int, bytes] = {}
        model = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131_072}
        self._said = {
            b"/v1/models": whole(orjson.dumps({"object": "list", "data": [model]})),
            b"/version": whole(b'{"version":"0.32.0"}'),
            b"/health": whole(b""),
            b"/metrics": whole(metrics(), content_type=b"text/plain; version=0.0.4"),
        }

    def connection(self) -> Served:
        """A new connection."""
        return _Served(self)

    def asked(self, connection: Served, path: bytes, body: bytes) -> None:
        """A request has come."""
        if path not in (b"/v1/completions", b"/v1/chat/completions"):
            connection.transport.write(self._said.get(path) or whole(b'{"detail":"Not Found"}', b"404 Not Found"))
            return
        fields = orjson.loads(body)
        if (fields.get("kv_transfer_params") or {}).get("do_remote_decode"):
            connection.transport.write(whole(self._handover()))
            return
        tokens = fields.get("max_tokens") or 16
        if not fields.get("stream"):
            connection.transport.write(self._answer(tokens))
            return
        connection.transport.write(STREAM)
        usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        min(self._groups, key=len)[connection] = [tokens, tokens, usage]

    def _handover(self) -> bytes:
        """The answer to a prefill leg."""
        name = f"cmpl-{self._name}-{next(self._legs)}"
        parameters = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(100, 108))],
            "remote_engine_id": f"3b71423f-fd86-44d8-8d9a-{self._name:>012}",
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 18_110,
            "tp_size": 1,
            "remote_num_tokens": 128,
            "remote_blocks_expiry_time": None,
        }
        return _completion(name, 1, parameters)

    def _answer(self, tokens: int) -> bytes:
        if tokens not in self._answers:
            self._answers[tokens] = whole(_completion("cmpl-0123456789abcdef", tokens, None))
        return self._answers[tokens]

    async def run(self, delay_s: float) -> None:
        """Goes from step to step.

        Args:
            delay_s: to the first.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        piece = chunk(PIECE)
        for streams in itertools.cycle(self._groups):
            at = max(at + self._tick_s, loop.time() - self._tick_s)
            await asyncio.sleep(max(at - loop.time(), 0))
            ended = []
            for connection, stream in streams.items():
                stream[0] -= 1
                if stream[0]:
                    connection.transport.write(piece)
                    continue
                tokens, usage = stream[1:]
                last = chunk(USAGE % (128 + tokens, tokens)) if usage else b""
                connection.transport.write(piece + last + chunk(DONE) + LAST_CHUNK)
                ended.append(connection)
            for connection in ended:
                del streams[connection]

    def lost(self, connection: Served) -> None:
        """A connection is gone."""
        for streams in self._groups:
            streams.pop(connection, None)


class _Served(Served):
    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine.asked)
        self._engine = engine

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self._engine.lost(self)


def _completion(name: str, tokens: int, parameters: dict[str, Any] | None) -> bytes:
    choice = {"index": 0, "text": " word" * tokens, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    fields = {
        "id": name,
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 128, "total_tokens": 128 + tokens, "completion_tokens": tokens},
        "kv_transfer_params": parameters,
    }
    return orjson.dumps(fields)


def metrics() -> bytes:
    """What a poll reads, and around it about as much else as a real engine exports."""
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    lines = [
        f"vllm:num_requests_running{labels} 4.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.25",
        f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="{BLOCKS}"}} 1.0',
    ]
    buckets = [
        f'vllm:histogram_{kind}_seconds_bucket{{engine="0",le="{edge / 8}",model_name="{MODEL}"}} 1234.0'
        for kind in range(16)
        for edge in range(20)
    ]
    return "\n".join([*buckets[:100], *lines, *buckets[100:], ""]).encode()


async def serve(count: int, step_s: float, groups: int) -> None:
    """Serves until the standard input ends; writes the ports in one line."""
    loop = asyncio.get_running_loop()
    engines = [FakeEngine(str(k), step_s, groups) for k in range(count)]
    servers = [await loop.create_server(engine.connection, "127.0.0.1", 0, backlog=4_096) for engine in engines]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    delays = [k * step_s / groups / count for k in range(count)]
    running = [asyncio.create_task(engine.run(delay)) for engine, delay in zip(engines, delays, strict=True)]
    await input_ends()
    for task in running:
        task.cancel()


async def input_ends() -> None:
    """Waits until the process that started this one is gone, or wants no more."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, ended.set)
    await ended.wait()
    loop.remove_reader(0)


def main(count: str, step_s: str, groups: str = "1") -> None:
    """The program of the engines' process."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(count), float(step_s), int(groups)))
