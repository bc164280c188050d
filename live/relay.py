"""A request's way through the router: decision, prefill leg, decode leg, retries, and the record of it all.

Nothing reaches the client before the decode engine has begun to answer, so whatever fails until then is tried again on
other engines, a bounded number of times. From the first byte on an error ends the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import orjson
from pydantic import BaseModel, Field

from ..envs.cluster import PS_PER_S
from ..envs.cluster_config import STRICT
from .clock import Clock
from .engine import Engine
from .http_client import JSON, Response, Unreachable
from .leg import BUSY, ClientFault, EngineFault, Leg
from .request import MAX_TOKENS, Refused, Request
from .router import Decision, LiveRouter, NoInstance
from .sse import EventStream
from .story import Story, record
from .two_legs import LEASE_SHARE, PARAMETERS, BadHandover, counted, decode_leg, handover, prefill_leg

EVENTS = b"text/event-stream; charset=utf-8"


class RelayLimits(BaseModel):
    """Bounds of a request's way; times are s of the engines where those are slower than life, else of the wall.

    Attributes:
        retries: further attempts after the first.
        prefill_timeout_s: a prefill leg that takes longer has failed.
        decode_timeout_s: so has a decode leg, or the one leg on a mixed engine.
    """

    model_config = STRICT

    retries: int = Field(2, ge=0, le=100)
    prefill_timeout_s: float = Field(120.0, gt=0, le=86_400)
    decode_timeout_s: float = Field(3_600.0, gt=0, le=86_400)


class Reply(Protocol):
    """Where the answer goes.

    Attributes:
        ended: the answer is complete, as far as the router is concerned.
        freed: called when more may be put after `put` has said no.
    """

    ended: bool
    freed: Callable[[], None] | None

    def begin(self, status: int, content_type: bytes) -> None:
        """Status and headers; pieces follow."""

    def put(self, data: bytes, last: bool = False) -> bool:
        """A piece of the body, which ends there if `last`; whether more may come now."""

    async def end(self) -> None:
        """The body is complete; waits until all of it is on its way."""

    async def whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """A whole answer in JSON."""


class _Stream:
    """A streamed answer on its way from an engine to a client: whole events go on as they come."""

    __slots__ = ("_clock", "_handle", "_leg", "_loop", "_reply", "_response", "_router", "_story", "events")

    def __init__(
        self,
        request: Request,
        story: Story,
        reply: Reply,
        leg: Leg,
        response: Response,
        handle: int,
        relay: Relay,
    ) -> None:
        self.events = EventStream(request.show_usage)
        self._story, self._reply, self._leg, self._response, self._handle = story, reply, leg, response, handle
        self._router, self._clock, self._loop = relay.router, relay.clock, asyncio.get_running_loop()

    @property
    def whole(self) -> bool:
        """Whether the stream has come to its end as it should."""
        events = self.events
        return events.done and not events.cut_short and events.error is None

    def take(self, data: bytes, last: bool) -> bool:
        """Passes on what has come (`http_client.Sink`)."""
        events, story, reply = self.events, self._story, self._reply
        self._leg.engine.progress = self._loop.time()
        before = events.pieces
        out = events.feed(data)
        new = events.pieces - before
        if events.error is not None and before == 0:
            self._response.abort()  # Before the first byte is out: another engine may do better.
            return False
        if new > 0:
            now, state = self._clock.now(), self._router.state
            if before == 0:
                story.first_token = now
                state.first_token(self._handle, now)
                self._leg.well()
                new -= 1
            elif now - story.last_token > story.max_stall:
                story.max_stall = now - story.last_token
            story.last_token = now
            if new:
                state.token(self._handle, new, now)
        more = True
        if out or last:
            ends = last and self.whole
            if out or ends:
                if not story.http_status:
                    story.http_status = 200
                    reply.begin(200, EVENTS)
                more = reply.put(out, ends)
        if events.error is not None:
            story.error = events.error
        return more


class Relay:
    """Leads requests through the engines.

    Args:
        router: decides.
        engines: its instances by global index (prefill, then decode; or mixed), as long as the router keeps them.
        clock: of all times.
        limits: bounds.
        lease_s: for how long prefill engines keep KV.
        write: takes each record.
        observe: told of each story when it has ended.
        on_change: told when an engine may or may not be sent requests from now on.
    """

    def __init__(
        self,
        router: LiveRouter,
        engines: list[Engine],
        clock: Clock,
        limits: RelayLimits,
        lease_s: float,
        write: Callable[[dict[str, Any]], None],
        observe: Callable[[Story], None],
        on_change: Callable[[Engine], None],
        keep_prompts: bool = False,
    ) -> None:
        self.router, self.engines, self.clock, self.limits = router, engines, clock, limits
        self._prefill_timeout = clock.patience(limits.prefill_timeout_s)
        self._between_legs = round(lease_s * LEASE_SHARE * PS_PER_S)
        self._write, self._observe, self._on_change = write, observe, on_change
        self._keep_prompts = keep_prompts
        self._freeing: set[asyncio.Task[None]] = set()
        self.closing = False
        """Whether nothing is tried again, or begun: the router ends."""

    async def run(self, request: Request, reply: Reply, story: Story | None = None) -> None:
        """Leads a request to its end; cancelled when the client goes.

        Every way out leaves a record.

        Args:
            request: what is asked.
            reply: where the answer goes.
            story: is told what happens as it happens; None: nobody looks on.
        """
        story = Story(request) if story is None else story
        try:
            await self._attempts(request, story, reply)
        except asyncio.CancelledError:
            story.status, story.error = "cancelled", "the client went away"
            raise
        except Refused as error:
            story.status = "failed" if story.faults else "rejected"  # Somebody tried, or nobody did.
            story.error, story.http_status = story.error or str(error), error.status
            raise
        except ClientFault as error:
            story.status, story.error, story.http_status = "rejected", str(error), error.status
            await reply.whole(error.status, error.body)
        except BaseException as error:
            story.status, story.error = "failed", story.error or described(error)
            story.http_status = story.http_status or 500
            raise
        finally:
            self._end(story)

    def reject(self, request: Request, error: Refused) -> None:
        """Records a request that is refused before anything is decided."""
        story = Story(request, status="rejected", http_status=error.status, error=str(error))
        self._end(story)

    def cancelled(self, request: Request) -> None:
        """Records a request whose client left before anything was decided."""
        self._end(Story(request, status="cancelled", error="the client went away"))

    def failed(self, request: Request, error: Exception) -> None:
        """Records a request that the router itself failed before anything was decided."""
        self._end(Story(request, http_status=500, error=described(error)))

    async def close(self) -> None:
        """Ends what was still to be freed."""
        for task in list(self._freeing):
            task.cancel()
        await asyncio.gather(*self._freeing, return_exceptions=True)

    async def _attempts(self, request: Request, story: Story, reply: Reply) -> None:
        avoided: set[Engine] = set()
        said: list[str] = []
        while True:
            if self.closing:
                raise Refused("the router is shutting down", status=503, kind="service_unavailable", retry_after_s=5)
            story.attempts += 1
            try:
                await self._attempt(request, story, reply, avoided)
                return
            except EngineFault as fault:
                story.faults.append(f"{fault.engine.name}: {fault}")
                said.append(fault.public)
                if fault.shun:
                    avoided.add(fault.engine)
                if story.http_status:  # The answer has begun.
                    if story.error is None:
                        story.error = story.faults[-1]
                        why = "the router is shutting down" if self.closing else fault.public
                        reply.put(error_event(f"the answer broke off: {why}"), True)
                    await reply.end()
                    return
                if story.attempts > self.limits.retries:
                    story.error = "; ".join(story.faults)
                    text = f"no engine could serve the request ({'; '.join(dict.fromkeys(said))})"
                    raise Refused(text, status=fault.status, kind="engine_error") from None

    async def _attempt(self, request: Request, story: Story, reply: Reply, avoided: set[Engine]) -> None:
        decision = self._decide(request, story, avoided)
        engines, state = self.engines, self.router.state
        aggregated, prefills = state.cluster.aggregated, len(state.cluster.prefill)
        decode = engines[prefills + decision.decode]
        prefill = engines[decision.prefill]
        story.prefill, story.decode = prefill.name, decode.name
        if decision.shadow is not None:
            story.shadow = [engines[decision.shadow[0]].name, engines[prefills + decision.shadow[1]].name]
        story.prefill_start = story.prefill_end = story.decode_start = -1
        left = [decision.handle]
        try:
            with Leg(decode, self._on_change) as leg:
                if aggregated:
                    story.prefill_start = self.clock.now()
                    body = orjson.dumps(counted(request.body) if request.stream else request.body)
                else:
                    body = await self._prefill(request, story, prefill, decision)
                await self._decode(request, story, reply, leg, decision, body, left)
        finally:
            if left:
                self.router.state.failed(decision.handle)

    def try_again(self) -> None:
        """Engines whose breaker has been open for long enough may be sent a request."""
        for engine in self.engines:
            if engine.breaker.tripped:
                self._on_change(engine)

    def _decide(self, request: Request, story: Story, avoided: set[Engine]) -> Decision:
        self.try_again()
        exclude = {i for i, engine in enumerate(self.engines) if engine in avoided} if avoided else set()
        for shunned in (exclude, set()) if exclude else (exclude,):  # rather one that has failed than none
            try:
                decision = self.router.decide(
                    request.prompt,
                    request.slo,
                    request.output_hint,
                    self.clock.now(),
                    ttft_target=request.ttft_target_s,
                    tpot_target=request.tpot_target_s,
                    exclude=shunned,
                )
            except NoInstance:
                continue
            story.decision, story.predicted = decision, decision.predicted
            return decision
        raise Refused(
            "no engine is available; try again later", status=503, kind="service_unavailable", retry_after_s=1
        )

    async def _prefill(self, request: Request, story: Story, engine: Engine, decision: Decision) -> bytes:
        """The prefill leg; returns the body of the decode leg."""
        story.prefill_start = self.clock.now()
        body = orjson.dumps(prefill_leg(request.body))
        with Leg(engine, self._on_change) as leg:
            leg.begins()
            try:
                answer = await engine.client.fetch(
                    "POST", request.path, body, self._headers(request), self._prefill_timeout
                )
                story.prefill_end = self.clock.now()
                engine.progress = asyncio.get_running_loop().time()
                leg.check(answer.status, answer.body)
                decode_body = orjson.dumps(
                    decode_leg(request.body, handover(orjson.loads(answer.body), engine.version))
                )
            except (Unreachable, BadHandover) as error:
                raise leg.fault(str(error)) from None
            except ValueError:
                raise leg.fault("the answer is not JSON") from None
            except TypeError:  # Nested deeper than can be written.
                raise leg.fault(f"{PARAMETERS} cannot be passed on") from None
            leg.well()
        self.router.state.prefill_done(decision.handle, self.clock.now())
        return decode_body

    async def _decode(
        self,
        request: Request,
        story: Story,
        reply: Reply,
        leg: Leg,
        decision: Decision,
        body: bytes,
        left: list[int],
    ) -> None:
        engine = leg.engine
        story.decode_start = now = self.clock.now()
        if story.prefill_end >= 0 and now - story.prefill_end > self._between_legs:
            story.prefill_again += 1
            raise EngineFault(engine, "too long since the prefill, whose KV may be gone", shun=False, status=503)
        if not leg.may_begin:  # Ejected, or its breaker has opened, while the prompt was prefilled.
            self._free(request, body, engine)
            raise EngineFault(engine, "it became unavailable after it was chosen", status=503)
        leg.begins(request.stream)
        response: Response | None = None
        try:
            timeout = self.clock.patience(self.limits.decode_timeout_s)
            response = await engine.client.open("POST", request.path, body, self._headers(request), timeout)
            if response.status in BUSY:
                self._free(request, body, engine)
            if response.status != 200 or not request.stream:
                await self._answer(request, story, reply, leg, response)
            else:
                await self._stream(request, story, reply, leg, decision, response)
            if self.router.state.cluster.aggregated and not request.stream:
                self.router.state.first_token(decision.handle)  # which ends its prefill
            self.router.state.finished(decision.handle, max(story.generated, 0))
            left.clear()
            leg.well()
        except Unreachable as error:
            if response is None or (request.stream and story.first_token < 0):  # Perhaps before it pulled the KV.
                self._free(request, body, engine)
            raise leg.fault(str(error)) from None
        finally:
            if left and response is not None:
                response.abort()

    async def _answer(self, request: Request, story: Story, reply: Reply, leg: Leg, response: Response) -> None:
        """An answer in one piece."""
        body = await response.whole()
        leg.engine.progress = asyncio.get_running_loop().time()
        leg.check(response.status, body)
        if not _is_object(body):
            raise leg.fault("the answer is not a JSON object")
        story.last_token = self.clock.now()
        story.generated = _completion_tokens(body)
        story.http_status = 200
        story.status = "finished"
        await reply.whole(200, _without_parameters(body))

    async def _stream(
        self, request: Request, story: Story, reply: Reply, leg: Leg, decision: Decision, response: Response
    ) -> None:
        """A streamed answer: whole events go on as they come."""
        stream = _Stream(request, story, reply, leg, response, decision.handle, self)
        events = stream.events
        reply.freed = response.resume
        try:
            await response.forward(stream.take)
        except Unreachable:
            if events.error is None:
                raise
        finally:
            reply.freed = None
        told = (events.usage or {}).get("completion_tokens")
        story.generated = told if type(told) is int and 0 <= told <= MAX_TOKENS else events.pieces
        if events.error is not None:
            raise leg.fault(events.error)
        if not stream.whole:
            raise leg.fault("the stream ended before its end")
        story.max_stall = max(story.max_stall, 0)
        story.status = "finished"
        await reply.end()

    def _headers(self, request: Request) -> bytes:
        return JSON + b"x-request-id: " + request.id.encode("latin-1", "replace") + b"\r\n"

    def _free(self, request: Request, body: bytes, failed: Engine) -> None:
        """Lets another decode engine come for KV that nobody will want, so that it is not held until the lease ends."""
        others = [engine for engine in self.engines if engine.role == "decode"]
        now = asyncio.get_running_loop().time()
        other = next((engine for engine in others if engine is not failed and engine.may_send(now)), None)
        if other is None or failed.role != "decode":
            return
        fields = orjson.loads(body)
        leg = prefill_leg(fields) | {PARAMETERS: fields[PARAMETERS]}

        async def free() -> None:
            with contextlib.suppress(Unreachable):
                body, headers = orjson.dumps(leg), self._headers(request)
                await other.client.fetch("POST", request.path, body, headers, self._prefill_timeout)

        task = asyncio.create_task(free())
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    def _end(self, story: Story) -> None:
        story.end = self.clock.now()
        self._observe(story)
        self._write(record(story, self.router, self._keep_prompts))


def described(error: BaseException) -> str:
    """An error that nobody expected, for a record."""
    return f"{type(error).__name__}: {error}"


def error_event(message: str) -> bytes:
    """The events that end a stream that broke off, as vLLM's own."""
    error = {"message": message, "type": "engine_error", "param": None, "code": 502}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"


def _completion_tokens(body: bytes) -> int:
    """Output tokens that an answer counts; −1 if it does not say."""
    at = body.rfind(b'"completion_tokens":')
    digits = body[at + 20 : at + 32].lstrip() if at >= 0 else b""
    end = 0
    while digits[end : end + 1].isdigit():
        end += 1
    count = int(digits[:end]) if end else -1
    return count if count <= MAX_TOKENS else -1


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except ValueError:
        return False


def _without_parameters(body: bytes) -> bytes:
    """The answer without the decode engine's own transfer parameters, if it has any."""
    at = body.find(b'"kv_transfer_params"')
    if at < 0 or body[at + 20 : at + 30].lstrip(b": ")[:1] != b"{":
        return body
    fields = orjson.loads(body)
    fields.pop(PARAMETERS, None)
    return orjson.dumps(fields)
