"""A client that asks engines one thing at a time and notes when every token came: for gates and calibration.

It goes past the router, straight to the engines. Prompts are token ids, answers have exactly the length asked for, and
all times are seconds of the engines (`LiveCluster.time_scale`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from types import TracebackType
from typing import Any

import orjson

from ..envs.cluster import PS_PER_S
from .clock import Clock
from .cluster_file import LiveCluster
from .engine import Engine, meet_all
from .engine_metrics import MissingMetric, Reported, values
from .http_client import JSON, Unreachable
from .leg import message_of
from .sse import DATA, DONE, END, error_text
from .two_legs import ASK, COMPLETIONS, PARAMETERS, BadHandover, handover

TOKENS = range(100, 500)
"""Token ids of prompts: ordinary ones in every vocabulary that we know of, the tiny model's and the emulator's too."""

ANSWER_S = 300.0
"""Wall seconds within which an answer must come, times the cluster's time scale where that is above 1."""

QUESTION_S = 10.0
"""Wall seconds within which an engine must say what it is or what it has counted."""

SETTLE_S = 2.0
"""Wall seconds in which an engine may still count what has just ended."""

PREFILL_TIME = b"vllm:request_prefill_time_seconds"
BYTES = b"vllm:nixl_bytes_transferred"

Prompt = list[int]


class Failed(RuntimeError):
    """An engine did not answer a request as it should; the message names it."""


class Busy(ValueError):
    """Somebody else uses the engines."""


@dataclass(frozen=True)
class Reply:
    """A whole answer of an engine.

    Attributes:
        tokens: ids of the answer; None where the engine does not tell them.
        text: of the answer.
        prompt_tokens: as the engine counts them.
        completion_tokens: as the engine counts them.
        cached_tokens: prompt tokens that it did not compute; None where it does not say.
        times: when each token was seen, s of the probe's clock; one time for all of an answer that is not streamed.
        sent: when the request was sent, s.
        parameters: what a prefill leg hands over.
    """

    tokens: tuple[int, ...] | None
    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    times: tuple[float, ...]
    sent: float
    parameters: dict[str, Any] | None = None

    @property
    def first_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.times[0] - self.sent

    @property
    def said(self) -> tuple[int, ...] | str:
        """What is compared: the tokens, or the text where they are not told."""
        return self.text if self.tokens is None else self.tokens


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
        self.engines = [
            Engine.of(role, cluster.engine_name(role, k), entry, faults=1, pause_s=1.0)
            for role, k, entry in cluster.engines()
        ]
        self.prefill, self.decode, self.mixed = (
            [engine for engine in self.engines if engine.role == role] for role in ("prefill", "decode", "mixed")
        )
        self._random = random.Random(seed)
        self._ids = count()
        self._limit = ANSWER_S * max(1.0, cluster.time_scale)

    async def __aenter__(self) -> Probe:
        """Meets the engines.

        Raises:
            Unreachable: one does not answer.
            Unfit: one is not what the cluster says.
        """
        for problem in await meet_all(self.engines, self.cluster, QUESTION_S):
            if problem is not None:
                await self.close()
                raise problem
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
        return self.clock.now() / PS_PER_S

    # --- requests ---

    async def whole(self, engine: Engine, prompt: Prompt, output: int, *, stream: bool = True) -> Reply:
        """A request that one engine answers alone.

        Args:
            engine: which; prefill engines may only be asked for one token.
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
                return _whole(engine, answer, sent, self.seconds())
            pieces: list[tuple[float, bytes]] = []

            def take(data: bytes, _ends: bool) -> bool:
                # Only noted here; reading it now would make other streams seem later than they are.
                pieces.append((self.seconds(), data))
                return True

            await response.forward(take)
        except Unreachable as error:
            raise Unreachable(f"{engine.name}: {error}") from None
        return _streamed(engine, pieces, sent)

    def _name(self) -> str:
        return f"probe-{self.clock.started_ns:x}-{next(self._ids)}"

    # --- what engines say of themselves ---

    async def reset_prefix_cache(self, engine: Engine) -> bool:
        """Whether the engine has emptied its prefix cache; only some can be asked to."""
        answer = await engine.client.fetch("POST", "/reset_prefix_cache", timeout=QUESTION_S)
        if answer.status != 200:
            return False
        try:
            said = orjson.loads(answer.body or b"{}")
        except ValueError:
            return True
        return not isinstance(said, dict) or bool(said.get("success", True))

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
        """What an engine has counted once these requests are in it.

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


@dataclass(frozen=True)
class Counted:
    """What an engine has counted; −1 where it does not say.

    Attributes:
        requests: finished ones.
        prefill_s: sum of their times from the first schedule to the first token, s of the engine.
        moved_bytes: KV that it has pulled.
        transfers: how often.
    """

    requests: float
    prefill_s: float
    moved_bytes: float
    transfers: float

    @staticmethod
    def of(metrics: bytes, time_scale: float) -> Counted:
        """Reads it from `/metrics`.

        Args:
            metrics: Prometheus exposition.
            time_scale: wall seconds of a second of the engine.
        """
        prefill = _sum(metrics, PREFILL_TIME + b"_sum")
        return Counted(
            _sum(metrics, PREFILL_TIME + b"_count"),
            prefill / time_scale if prefill >= 0 else -1.0,
            _sum(metrics, BYTES + b"_sum"),
            _sum(metrics, BYTES + b"_count"),
        )


def _sum(metrics: bytes, name: bytes) -> float:
    try:
        return sum(values(metrics, (name,), 1e18))
    except MissingMetric:
        return -1.0


def _whole(engine: Engine, body: bytes, sent: float, now: float) -> Reply:
    try:
        said = orjson.loads(body)
        choice, usage = said["choices"][0], said["usage"]
        tokens = choice.get("token_ids")
        times = (now,) * max(1, int(usage["completion_tokens"]))
        return _reply(engine, tokens, str(choice["text"]), usage, times, sent, said.get(PARAMETERS))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Failed(f"{engine.name} answers with no completion: {body[:200]!r}") from None


def _streamed(engine: Engine, pieces: list[tuple[float, bytes]], sent: float) -> Reply:
    tokens: list[int] | None = []
    text, usage, done = "", None, False
    times: list[float] = []
    for when, event in _events(pieces):
        if event == DONE:
            done = True
            continue
        try:
            said = orjson.loads(event)
            if "error" in said:
                raise Failed(f"{engine.name} breaks off after {len(times)} tokens: {error_text(said['error'])}")
            usage = said.get("usage") or usage
            for choice in said["choices"]:
                text += choice["text"]
                new = choice.get("token_ids")
                tokens = None if tokens is None or new is None else tokens + new
                times += [when] * (1 if new is None else len(new))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Failed(f"{engine.name} streams what is no event of a completion: {event[:200]!r}") from None
    if not done or not times or not isinstance(usage, dict):
        raise Failed(f"{engine.name} breaks off after {len(times)} tokens, without the end of its stream")
    return _reply(engine, tokens, text, usage, tuple(times), sent, None)


def _events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Events of a stream, each with the time at which its end came."""
    rest = b""
    for when, data in pieces:
        *whole, rest = (rest + data).replace(b"\r\n", b"\n").split(END)
        for event in whole:
            content = b"".join(line[len(DATA) :].strip() for line in event.split(b"\n") if line.startswith(DATA))
            if content:
                yield when, content


def _reply(
    engine: Engine,
    tokens: list[int] | None,
    text: str,
    usage: dict[str, Any],
    times: tuple[float, ...],
    sent: float,
    parameters: Any,
) -> Reply:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or type(output) is not int:
        raise Failed(f"{engine.name} does not count tokens: usage is {str(usage)[:200]}")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    told = None if tokens is None else tuple(tokens)
    handed = parameters if isinstance(parameters, dict) else None
    return Reply(told, text, prompt, output, cached if type(cached) is int else None, times, sent, handed)
