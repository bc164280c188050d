"""An open-loop load: every request is sent at its time, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import orjson

from ..clock import Clock
from ..http_client import HttpClient, Unreachable
from ..sse import EventStream, error_text
from ..two_legs import COMPLETIONS
from .observation import Observation
from .pacing import wait_until
from .plan import Plan

WARM = 32
"""Connections that stand before the first request."""

IDLE_S = 45.0
"""Wall time for which an unused connection is kept; the router keeps it for 60 s."""

LEAD_NS = 200_000_000
"""Wall time from when all is ready to the start of the trace."""

MOST_TOKENS = 2**31 - 1
"""A count of output tokens beyond what records hold is an engine's nonsense."""

REFUSED = (400, 401, 404, 413, 429)
"""Answers of a router that no engine has seen the request behind."""


class Load:
    """The requests of a run on their way.

    Args:
        url: of the router.
        plan: what is sent.
        time_scale: wall seconds of one second of the engines; times in the trace are the engines'.
        timeout_s: a request that takes longer has failed, s of the engines.
        keep: told of each request when it has ended.
    """

    def __init__(
        self, url: str, plan: Plan, time_scale: float, timeout_s: float, keep: Callable[[Observation], None]
    ) -> None:
        self.plan = plan
        self.clock = Clock(time_scale)
        """Its time 0 is that of the trace, once `start` has been called."""
        self.sent = 0
        """Requests that were sent."""
        self.ended = 0
        """Requests that have ended."""
        self._client = HttpClient(url, idle_s=IDLE_S, max_idle=4_096)
        self._scale, self._timeout_s, self._keep = time_scale, timeout_s, keep
        self._open: set[asyncio.Task[None]] = set()
        self._given_up: str | None = None
        """Why requests under way are cut off and kept as failed ones; None: they are forgotten."""

    async def warm(self) -> None:
        """Opens connections.

        Raises:
            Unreachable: the router is not there.
        """
        await asyncio.gather(*(self._client.fetch("GET", "/health", headers=b"") for _ in range(WARM)))

    def start(self) -> int:
        """Sets the trace's time 0, a moment from now; returns it, ns of the machine's monotonic clock."""
        self.clock.started_ns = time.monotonic_ns() + LEAD_NS
        return self.clock.started_ns

    async def send(self) -> None:
        """Sends every request at its time; returns when the last one is sent."""
        plan, arrivals = self.plan, self.plan.trace.arrival
        for index in range(len(plan)):
            body, headers = plan.body(index), plan.headers(index)
            due = int(arrivals[index])
            await wait_until(self.clock.started_ns + round(due * self._scale / 1_000), time.monotonic_ns)
            seen = Observation(index, plan.id(index), due, sent=self.clock.now())
            task = asyncio.create_task(self._request(seen, body, headers))
            self._open.add(task)
            self.sent += 1
            task.add_done_callback(self._open.discard)

    async def drain(self, seconds: float) -> int:
        """Waits for the requests that are under way, and gives up those that have not ended by then.

        Args:
            seconds: of the engines.

        Returns:
            How many were given up.
        """
        if self._open:
            await asyncio.wait(self._open, timeout=seconds * self._scale)
        left = len(self._open)
        self._given_up = f"it had not ended {seconds:g} s after the last one was sent"
        await self._cancel()
        return left

    async def close(self) -> None:
        """Closes all connections; what is under way is forgotten."""
        self._given_up = None
        await self._cancel()
        await self._client.close()

    async def _cancel(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _request(self, seen: Observation, body: bytes, headers: bytes) -> None:
        try:
            await self._answer(seen, body, headers)
        except Unreachable as error:
            seen.error = str(error)
        except asyncio.CancelledError:
            if self._given_up is None:
                raise
            seen.error = self._given_up
        seen.end = self.clock.now()
        self.ended += 1
        self._keep(seen)

    async def _answer(self, seen: Observation, body: bytes, headers: bytes) -> None:
        events, clock = EventStream(show_usage=True), self.clock
        timeout = self._timeout_s * self._scale
        response = await self._client.open("POST", COMPLETIONS, body, headers, timeout)
        try:
            seen.http_status = response.status
            if response.status != 200:
                seen.error = _reason(await response.whole())
                seen.status = "rejected" if response.status in REFUSED else "failed"
                return

            def take(data: bytes, last: bool) -> bool:
                now, before = clock.now(), events.pieces
                events.feed(data)
                if events.pieces > before:
                    if seen.first < 0:
                        seen.first = now
                    else:
                        seen.max_stall = max(seen.max_stall, now - seen.last)
                    seen.last = now
                    seen.generated = events.pieces
                return True

            await response.forward(take)
        finally:
            response.abort()
        seen.error = self._complaint(seen, events)
        if seen.error is None:
            seen.status = "finished"

    def _complaint(self, seen: Observation, events: EventStream) -> str | None:
        """What is wrong with an answer that has ended; None: nothing."""
        if events.error is not None:
            return events.error
        if not events.done or events.cut_short:
            return "the answer ended before its end"
        trace, usage = self.plan.trace, events.usage or {}
        for name, what, wanted in (
            ("completion_tokens", "output", int(trace.output[seen.index])),
            ("prompt_tokens", "prompt", int(trace.prompt[seen.index])),
        ):
            if name == "completion_tokens" and type(usage.get(name)) is int and 0 <= usage[name] <= MOST_TOKENS:
                seen.generated = usage[name]
            if usage.get(name) != wanted:
                said = usage.get(name, "no number of")
                return f"token contract: {said} {what} tokens, where {wanted} were asked for"
        return None


def _reason(body: bytes) -> str:
    with suppress(ValueError):
        said = orjson.loads(body)
        if isinstance(said, dict) and "error" in said:
            return error_text(said["error"])
    return "the answer gives no reason"


