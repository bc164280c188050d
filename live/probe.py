"""A client that asks engines one thing at a time and notes when every token came: for gates and calibration.

It goes past the router, straight to the engines. Prompts are token ids, answers have exactly the length asked for, and
all times are seconds of the engines (`LiveCluster.time_scale`).
"""

from __future__ import annotations

import asyncio
import random
from itertools import count, product
from types import TracebackType
from typing import Any

import orjson

from .clock import Clock
from .cluster_file import LiveCluster
from .engine import Engine, engines_of, meet_every
from .engine_counts import Counted
from .engine_metrics import Reported
from .http_client import JSON, Unreachable
from .leg import message_of
from .prefix_cache import NoReset, reset_prefix_cache
from .reply import Failed, Reply, read_stream, read_whole
from .two_legs import ASK, COMPLETIONS, PARAMETERS, BadHandover, handover

TOKENS = range(100, 500)
"""Token ids of prompts: ordinary ones in every vocabulary that we know of, the tiny model's and the emulator's too."""

ANSWER_S = 300.0
"""Wall seconds within which an answer must come, times the cluster's time scale where that is above 1."""

QUESTION_S = 10.0
"""Wall seconds within which an engine must say what it is or what it has counted."""

SETTLE_S = 2.0
"""Wall seconds in which an engine may still count what has just ended."""

Prompt = list[int]


class Busy(ValueError):
    """Somebody else uses the engines."""


class Probe:
    """Asks the engines of a cluster. Use as an async context manager: it meets all engines first.

    Args:
        cluster: the engines.
        seed: of the prompts.

    Attributes:
        prefill: engines of the prefill pool.
        decode: engines of the decode pool.
        mixed: engines of the mixed pool.
    """

    def __init__(self, cluster: LiveCluster, seed: int | None = None) -> None:
        self.cluster = cluster
        self.clock = Clock(cluster.time_scale)
        self.engines = engines_of(cluster)
        self.prefill, self.decode, self.mixed = (
            [engine for engine in self.engines if engine.role == role] for role in ("prefill", "decode", "mixed")
        )
        self._random = random.Random(seed)
        self._ids = count()
        self._limit = ANSWER_S * max(1.0, cluster.time_scale)

    async def __aenter__(self) -> Probe:
        """Meets the engines.

        Raises:
            Unreachable: some do not answer.
            Unfit: one is not what the cluster says, or they differ.
        """
        try:
            await meet_every(self.engines, self.cluster, QUESTION_S)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all connections."""
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        for engine in self.engines:
            await engine.client.close()

    @property
    def pairs(self) -> list[tuple[Engine, Engine]]:
        """All pairs of a prefill and a decode engine; none where engines are mixed."""
        return list(product(self.prefill, self.decode))

    @property
    def whole_engines(self) -> list[Engine]:
        """Engines that answer whole requests by themselves: decode or mixed ones."""
        return self.decode or self.mixed

    @property
    def context(self) -> int:
        """Prompt and output tokens that fit every engine: its context limit, and its KV cache."""
        limits = [engine.blocks * engine.block_size for engine in self.engines]
        limits += [length for engine in self.engines if (length := engine.max_model_len)]
        return min([*limits, *([self.cluster.max_model_len] if self.cluster.max_model_len else [])])

    def prompt(self, length: int) -> Prompt:
        """Random tokens that were not sent before, so that no prefix cache holds them."""
        return self._random.choices(TOKENS, k=length)

    def seconds(self) -> float:
        """Now, s of the engines."""
        return self.clock.seconds()

    # --- requests ---

    async def whole(self, engine: Engine, prompt: Prompt, output: int, *, stream: bool = True) -> Reply:
        """A request that one engine answers alone.

        Args:
            engine: which; emulated prefill engines give one token only.
            prompt: token ids.
            output: exact number of tokens.
            stream: whether tokens come one by one.

        Raises:
            Failed: an error, or an answer that breaks off.
            Unreachable: no answer.
        """
        return await self._ask(engine, prompt, output, stream, {}, self._name())

    async def two_legs(
        self, prefill: Engine, decode: Engine, prompt: Prompt, output: int, *, stream: bool = True
    ) -> tuple[Reply, Reply]:
        """A request in two legs, on a pair.

        Returns:
            The answers of both legs; tokens and times are those of the second.

        Raises:
            Failed: an error, an answer that breaks off, or a prefill leg that hands over nothing usable.
            Unreachable: no answer.
        """
        name = self._name()
        first = await self._ask(prefill, prompt, 1, False, {PARAMETERS: dict(ASK)}, name)
        try:
            parameters = handover({PARAMETERS: first.parameters}, prefill.version)
        except BadHandover as error:
            raise Failed(f"{prefill.name}: {error}") from None
        return first, await self._ask(decode, prompt, output, stream, {PARAMETERS: parameters}, name)

    async def _ask(
        self, engine: Engine, prompt: Prompt, output: int, stream: bool, more: dict[str, Any], name: str
    ) -> Reply:
        body: dict[str, Any] = {"model": self.cluster.model, "prompt": prompt, "temperature": 0}
        body |= {"max_tokens": output, "min_tokens": output, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
        headers = JSON + b"x-request-id: %b\r\n" % name.encode()
        content = orjson.dumps(body | more)
        sent = self.seconds()
        try:
            response = await engine.client.open("POST", COMPLETIONS, content, headers, self._limit)
            if response.status != 200:
                said = message_of(await response.whole())
                raise Failed(f"{engine.name} answers {response.status}: {said or 'no reason given'}")
            if not stream:
                answer = await response.whole()
                return read_whole(engine.name, answer, sent, self.seconds())
            pieces: list[tuple[float, bytes]] = []

            def take(data: bytes, _ends: bool) -> bool:
                # Only noted here; reading it now would make other streams seem later than they are.
                pieces.append((self.seconds(), data))
                return True

            await response.forward(take)
        except Unreachable as error:
            raise Unreachable(f"{engine.name}: {error}") from None
        return read_stream(engine.name, pieces, sent)

    def _name(self) -> str:
        return f"probe-{self.clock.started_ns:x}-{next(self._ids)}"

    # --- what engines say of themselves ---

    async def reset_prefix_cache(self, engine: Engine) -> bool:
        """Whether the engine has emptied its prefix cache; only some can be asked to."""
        try:
            return await reset_prefix_cache(engine.client, QUESTION_S)
        except NoReset:
            return False

    async def wait_idle(self) -> None:
        """Returns when no engine has a request.

        Raises:
            Busy: one still has after two seconds; names it.
        """
        await asyncio.gather(*(self._wait_idle(engine) for engine in self.engines))

    async def _wait_idle(self, engine: Engine) -> None:
        end = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            load = await self.load(engine)
            if load.running == load.waiting == 0:
                return
            if asyncio.get_running_loop().time() > end:
                raise Busy(
                    f"{engine.name} is under load ({load.running} requests running, {load.waiting} waiting); "
                    "nothing can be measured beside other requests"
                )
            await asyncio.sleep(0.05)

    async def load(self, engine: Engine) -> Reported:
        """What an engine reports now."""
        return await engine.ask_poll(QUESTION_S)

    async def counted(self, engine: Engine) -> Counted:
        """What an engine has counted since it started."""
        answer = await engine.client.fetch("GET", "/metrics", headers=b"", timeout=QUESTION_S)
        return Counted.of(answer.body, self.cluster.time_scale)

    async def counted_after(self, engine: Engine, before: Counted, requests: int) -> Counted:
        """What an engine has counted once these requests are in it, or after two seconds.

        Raises:
            Busy: it has counted more of them.
        """
        end = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            now = await self.counted(engine)
            new = now.requests - before.requests
            if new > requests:
                raise Busy(
                    f"{engine.name} has served {new:g} requests where {requests} were sent; nothing can be measured "
                    "beside other requests"
                )
            if new == requests or before.requests < 0 or asyncio.get_running_loop().time() > end:
                return now
            await asyncio.sleep(0.01)

    async def round_trip(self, engine: Engine) -> float:
        """Seconds of a question that costs an engine nothing, the least of five."""
        least = float("inf")
        for _ in range(5):
            start = self.seconds()
            await engine.client.fetch("GET", "/version", headers=b"", timeout=QUESTION_S)
            least = min(least, self.seconds() - start)
        return least
