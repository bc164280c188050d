"""A proxy for two legs that only forwards: what the router's own work is measured against.

It takes engines in turn, checks nothing, retries nothing, counts nothing, and asks no engine how it is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import orjson

from .fake_engine import input_ends
from .lean_http import Asking, Served, post

PREFILL = {"max_tokens": 1, "stream": False}
ASK = {"do_remote_decode": True}


class _Leg(Asking):
    """A connection to an engine: gives its answer's body to one function, or its bytes as they come to another."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self._pool = pool
        self._raw: Callable[[bytes], None] | None = None
        self._answered: Callable[[bytes], None] | None = None

    def send(
        self, request: bytes, raw: Callable[[bytes], None] | None, answered: Callable[[bytes], None] | None
    ) -> None:
        self._raw, self._answered = raw, answered
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw(data)
        super().data_received(data)

    def on_body(self, data: bytes) -> None:
        if self._raw is None:
            super().on_body(data)

    def answered(self, body: bytes) -> None:
        answered = self._answered
        self._raw = self._answered = None
        self._pool.idle.append(self)
        if answered is not None:
            answered(body)


class _Pool:
    """Connections to one engine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.idle: list[_Leg] = []
        self._opening: set[asyncio.Task[None]] = set()

    def send(
        self, request: bytes, raw: Callable[[bytes], None] | None, answered: Callable[[bytes], None] | None = None
    ) -> None:
        if self.idle:
            self.idle.pop().send(request, raw, answered)
            return

        async def connect() -> None:
            loop = asyncio.get_running_loop()
            _, leg = await loop.create_connection(lambda: _Leg(self), "127.0.0.1", self._port)
            leg.send(request, raw, answered)

        task = asyncio.create_task(connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


class BareProxy:
    """Forwards.

    Args:
        prefill: ports of the prefill engines.
        decode: ports of the decode engines.
    """

    def __init__(self, prefill: list[int], decode: list[int]) -> None:
        self._prefill = itertools.cycle([_Pool(port) for port in prefill])
        self._decode = itertools.cycle([_Pool(port) for port in decode])

    def connection(self) -> Served:
        """A new connection of a client."""
        return Served(self._asked)

    def _asked(self, client: Served, path: bytes, body: bytes) -> None:
        fields = orjson.loads(body)

        def handed_over(answer: bytes) -> None:
            leg = fields | {"kv_transfer_params": orjson.loads(answer)["kv_transfer_params"]}
            next(self._decode).send(post(path, orjson.dumps(leg)), client.transport.write)

        leg = fields | PREFILL | {"kv_transfer_params": ASK}
        leg.pop("stream_options", None)
        next(self._prefill).send(post(path, orjson.dumps(leg)), None, handed_over)


async def serve(prefill: list[int], decode: list[int]) -> None:
    """Serves until the standard input ends; writes its address in one line."""
    proxy = BareProxy(prefill, decode)
    server = await asyncio.get_running_loop().create_server(proxy.connection, "127.0.0.1", 0, backlog=4_096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await input_ends()


def main(prefill: str, decode: str) -> None:
    """The program of its process; ports separated by commas."""
    import uvloop

    pools = [[int(port) for port in ports.split(",")] for ports in (prefill, decode)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(*pools))
