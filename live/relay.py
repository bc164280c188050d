"""A request's way through the router: decision, prefill leg, decode leg, retries, and the record of it all.

Nothing reaches the client before the decode engine has begun to answer, so whatever fails until then is tried again on
other engines, a bounded number of times. From the first byte on an error ends the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from pydantic import BaseModel, Field

from ..envs.cluster import PS_PER_S
from ..envs.cluster_config import STRICT
from .clock import Clock
from .engine import Engine
from .http_client import JSON, Response, Unreachable
from .request import MAX_TOKENS, Refused, Request, Status
from .router import Decision, LiveRouter, NoInstance
from .sse import EventStream, error_text
from .two_legs import LEASE_SHARE, PARAMETERS, BadHandover, counted, decode_leg, handover, prefill_leg

log = logging.getLogger(__name__)

EVENTS = b"text/event-stream; charset=utf-8"

BUSY = (408, 429, 503)
"""Answers of an engine that has too much to do: another may have less, and it is no fault."""


class RelayLimits(BaseModel):
    """Bounds of a request's way.

    Attributes:
        retries: further attempts after the first.
        prefill_timeout_s: a prefill leg that takes longer has failed.
    """

    model_config = STRICT

    retries: int = Field(2, ge=0, le=100)
    prefill_timeout_s: float = Field(120.0, gt=0, le=86_400)


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


class EngineFault(Exception):
    """An engine failed a leg.

    Args:
        engine: which.
        reason: a sentence.
        shun: whether the next attempt goes elsewhere.
        status: that the client gets if nothing else helps.
    """

    def __init__(self, engine: Engine, reason: str, *, shun: bool = True, status: int = 502) -> None:
        super().__init__(reason)
        self.engine, self.shun, self.status = engine, shun, status


class ClientFault(Exception):
    """An engine refused what the client wrote; its answer is the client's."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(_message(body) or f"refused with {status}")
        self.status, self.body = status, body


@dataclass(slots=True)
class Story:
    """What has happened to a request so far; becomes its record."""

    request: Request
    status: Status = "failed"
    http_status: int = 0
    error: str | None = None
    attempts: int = 0
    decision: Decision | None = None
    prefill: str | None = None
    decode: str | None = None
    predicted: int = -1
    prefill_start: int = -1
    prefill_end: int = -1
    decode_start: int = -1
    first_token: int = -1
    last_token: int = -1
    end: int = -1
    max_stall: int = -1
    generated: int = -1
    prefill_again: int = 0
    faults: list[str] = field(default_factory=list)


class _Stream:
    """A streamed answer on its way from an engine to a client: whole events go on as they come."""

    __slots__ = ("_clock", "_engine", "_handle", "_loop", "_reply", "_response", "_router", "_story", "events")

    def __init__(
        self,
        request: Request,
        story: Story,
        reply: Reply,
        engine: Engine,
        response: Response,
        handle: int,
        relay: Relay,
    ) -> None:
        self.events = EventStream(request.show_usage)
        self._story, self._reply, self._engine, self._response, self._handle = story, reply, engine, response, handle
        self._router, self._clock, self._loop = relay.router, relay.clock, asyncio.get_running_loop()

    @property
    def whole(self) -> bool:
        """Whether the stream has come to its end as it should."""
        events = self.events
        return events.done and not events.cut_short and events.error is None

    def take(self, data: bytes, last: bool) -> bool:
        """Passes on what has come (`http_client.Sink`)."""
        events, story, reply = self.events, self._story, self._reply
        self._engine.progress = self._loop.time()
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
                state.first_token(self._handle)
                new -= 1
            elif now - story.last_token > story.max_stall:
                story.max_stall = now - story.last_token
            story.last_token = now
            if new:
                state.token(self._handle, new)
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
        self._between_legs = round(lease_s * LEASE_SHARE * PS_PER_S)
        self._write, self._observe, self._on_change = write, observe, on_change
        self._keep_prompts = keep_prompts
        self._freeing: set[asyncio.Task[None]] = set()

    async def run(self, request: Request, reply: Reply) -> None:
        """Leads a request to its end; cancelled when the client goes.

        Every way out leaves a record.
        """
        story = Story(request)
        try:
            await self._attempts(request, story, reply)
        except asyncio.CancelledError:
            story.status, story.error = "cancelled", "the client went away"
            raise
        except Refused as error:
            story.status, story.error, story.http_status = "rejected", str(error), error.status
            raise
        except ClientFault as error:
            story.status, story.error, story.http_status = "rejected", str(error), error.status
            await reply.whole(error.status, error.body)
        except BaseException as error:
            story.status, story.error = "failed", story.error or f"{type(error).__name__}: {error}"
            raise
        finally:
            self._end(story)

    def reject(self, request: Request, error: Refused) -> None:
        """Records a request that is refused before anything is decided."""
        story = Story(request, status="rejected", http_status=error.status, error=str(error))
        self._end(story)

    def failed(self, request: Request, error: Exception) -> None:
        """Records a request that failed inside the router before anything was decided."""
        self._end(Story(request, error=f"{type(error).__name__}: {error}"))

    def cancelled(self, request: Request) -> None:
        """Records a request whose client left before anything was decided."""
        self._end(Story(request, status="cancelled", error="the client went away"))

    async def close(self) -> None:
        """Ends what was still to be freed."""
        for task in list(self._freeing):
            task.cancel()
        await asyncio.gather(*self._freeing, return_exceptions=True)

    async def _attempts(self, request: Request, story: Story, reply: Reply) -> None:
        avoided: set[Engine] = set()
        while True:
            story.attempts += 1
            try:
                await self._attempt(request, story, reply, avoided)
                return
            except EngineFault as fault:
                story.faults.append(f"{fault.engine.name}: {fault}")
                if fault.shun:
                    avoided.add(fault.engine)
                if story.http_status:  # The answer has begun.
                    if story.error is None:
                        story.error = f"{fault.engine.name}: {fault}"
                        reply.put(error_event(story.error), True)
                    await reply.end()
                    return
                if story.attempts > self.limits.retries:
                    story.error = "; ".join(story.faults)
                    text = f"no engine could serve the request ({story.error})"
                    raise Refused(text, status=fault.status, kind="engine_error") from None

    async def _attempt(self, request: Request, story: Story, reply: Reply, avoided: set[Engine]) -> None:
        decision = self._decide(request, story, avoided)
        engines, state = self.engines, self.router.state
        aggregated, prefills = state.cluster.aggregated, len(state.cluster.prefill)
        decode = engines[prefills + decision.decode]
        prefill = engines[decision.prefill]
        story.prefill, story.decode = prefill.name, decode.name
        left = [decision.handle]
        try:
            if aggregated:
                story.prefill_start = self.clock.now()
                body = orjson.dumps(counted(request.body) if request.stream else request.body)
            else:
                body = await self._prefill(request, story, prefill, decision)
            await self._decode(request, story, reply, decode, decision, body, left)
        finally:
            if left:
                self.router.state.failed(decision.handle)

    def _try_again(self) -> None:
        """Engines whose breaker has been open for long enough may be sent a request."""
        for engine in self.engines:
            if engine.breaker.tripped:
                self._on_change(engine)

    def _decide(self, request: Request, story: Story, avoided: set[Engine]) -> Decision:
        self._try_again()
        exclude = {i for i, engine in enumerate(self.engines) if engine in avoided} if avoided else set()
        for shunned in (exclude, set()) if exclude else (exclude,):  # rather one that has failed than none
            try:
                decision = self.router.decide(
                    request.prompt, request.slo, request.output_hint, self.clock.now(), exclude=shunned
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
        answer = await self._whole_leg(engine, request, body, self.limits.prefill_timeout_s)
        story.prefill_end = self.clock.now()
        try:
            parameters = handover(answer, engine.version)
        except BadHandover as error:
            raise self._fault(engine, str(error)) from None
        try:
            leg = orjson.dumps(decode_leg(request.body, parameters))
        except TypeError:  # Nested deeper than can be written.
            raise self._fault(engine, f"{PARAMETERS} cannot be passed on") from None
        self._well(engine)
        self.router.state.prefill_done(decision.handle)
        return leg

    async def _whole_leg(self, engine: Engine, request: Request, body: bytes, timeout: float) -> Any:
        """A leg whose answer is read whole; its JSON."""
        engine.leg_begins(asyncio.get_running_loop().time())
        try:
            answer = await engine.client.fetch("POST", request.path, body, self._headers(request), timeout)
        except Unreachable as error:
            raise self._fault(engine, str(error)) from None
        except BaseException:
            engine.breaker.gave_up()
            raise
        finally:
            engine.leg_ends()
        engine.progress = asyncio.get_running_loop().time()
        self._check(engine, answer.status, answer.body)
        try:
            return orjson.loads(answer.body)
        except ValueError:
            raise self._fault(engine, "the answer is not JSON") from None

    async def _decode(
        self,
        request: Request,
        story: Story,
        reply: Reply,
        engine: Engine,
        decision: Decision,
        body: bytes,
        left: list[int],
    ) -> None:
        story.decode_start = now = self.clock.now()
        if story.prefill_end >= 0 and now - story.prefill_end > self._between_legs:
            story.prefill_again += 1
            raise EngineFault(engine, "too long since the prefill, whose KV may be gone", shun=False, status=503)
        engine.leg_begins(asyncio.get_running_loop().time())
        response: Response | None = None
        try:
            try:
                response = await engine.client.open("POST", request.path, body, self._headers(request))
                if response.status != 200 or not request.stream:
                    await self._answer(request, story, reply, engine, response)
                else:
                    await self._stream(request, story, reply, engine, decision, response)
            except Unreachable as error:
                if response is None:
                    self._free(request, body, engine)
                raise self._fault(engine, str(error)) from None
            if self.router.state.cluster.aggregated and not request.stream:
                self.router.state.first_token(decision.handle)  # which ends its prefill
            self.router.state.finished(decision.handle, max(story.generated, 0))
            left.clear()
            self._well(engine)
        except BaseException as error:
            if response is not None:
                response.abort()
            if not isinstance(error, EngineFault | ClientFault):
                engine.breaker.gave_up()
            raise
        finally:
            engine.leg_ends()

    async def _answer(self, request: Request, story: Story, reply: Reply, engine: Engine, response: Response) -> None:
        """An answer in one piece."""
        body = await response.whole()
        engine.progress = asyncio.get_running_loop().time()
        self._check(engine, response.status, body)
        if not _is_object(body):
            raise self._fault(engine, "the answer is not a JSON object")
        story.last_token = self.clock.now()
        story.generated = _completion_tokens(body)
        story.http_status = 200
        story.status = "finished"
        await reply.whole(200, _without_parameters(body))

    async def _stream(
        self, request: Request, story: Story, reply: Reply, engine: Engine, decision: Decision, response: Response
    ) -> None:
        """A streamed answer: whole events go on as they come."""
        stream = _Stream(request, story, reply, engine, response, decision.handle, self)
        events = stream.events
        reply.freed = response.resume
        try:
            await response.forward(stream.take)
        except Unreachable:
            if events.error is None:
                raise
        finally:
            reply.freed = None
        counted = (events.usage or {}).get("completion_tokens")
        story.generated = counted if type(counted) is int and 0 <= counted <= MAX_TOKENS else events.pieces
        if events.error is not None:
            raise self._fault(engine, events.error)
        if not stream.whole:
            raise self._fault(engine, "the stream ended before its end")
        story.max_stall = max(story.max_stall, 0)
        story.status = "finished"
        await reply.end()

    def _check(self, engine: Engine, status: int, body: bytes) -> None:
        """Refuses an answer that is not 200: whose fault is it?"""
        if status == 200:
            return
        said = f"answered {status}: {_message(body) or 'no reason given'}"
        if status in BUSY:
            engine.breaker.gave_up()
            raise EngineFault(engine, said, status=503)
        if 400 <= status < 500:
            self._well(engine)
            raise ClientFault(status, body)
        raise self._fault(engine, said)

    def _well(self, engine: Engine) -> None:
        """The engine did as it should."""
        tripped = engine.breaker.tripped
        engine.breaker.succeeded()
        if tripped:
            self._on_change(engine)

    def _fault(self, engine: Engine, reason: str) -> EngineFault:
        if engine.breaker.failed(asyncio.get_running_loop().time()):
            log.warning("nothing is sent to %s for a while: %s", engine.name, reason)
        self._on_change(engine)
        return EngineFault(engine, reason)

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
                await other.client.fetch("POST", request.path, orjson.dumps(leg), timeout=self.limits.prefill_timeout_s)

        task = asyncio.create_task(free())
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    def _end(self, story: Story) -> None:
        story.end = self.clock.now()
        self._observe(story)
        self._write(record(story, self.router, self._keep_prompts))


def error_event(message: str) -> bytes:
    """The events that end a stream that broke off, as vLLM's own."""
    error = {"message": message, "type": "engine_error", "param": None, "code": 502}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"


def record(story: Story, router: LiveRouter, keep_prompt: bool = False) -> dict[str, Any]:
    """A request's record: times in ps of the router's clock, −1 where it did not come so far or nobody could see."""
    request, decision = story.request, story.decision
    targets = router.targets
    shadow = decision.shadow if decision else None
    kept: dict[str, Any] = {}
    if keep_prompt:
        kept["prompt_content"] = request.body.get("messages" if request.chat else "prompt")
    return {
        "id": request.id,
        "status": story.status,
        "http_status": story.http_status,
        "error": story.error,
        "arrival": request.arrival,
        "prefill_start": story.prefill_start,
        "prefill_end": story.prefill_end,
        "decode_start": story.decode_start,
        "first_token": story.first_token,
        "last_token": story.last_token,
        "end": story.end,
        "max_stall": story.max_stall,
        "prompt": request.prompt,
        "predicted": story.predicted,
        "generated": story.generated,
        "slo": ("tight", "loose")[request.slo],
        "ttft_target": targets.ttft[request.slo],
        "tpot_target": targets.tpot[request.slo],
        "streamed": request.stream,
        "prefill": story.prefill,
        "decode": story.decode,
        "attempts": story.attempts,
        "faults": story.faults,
        "policy": decision.policy if decision else None,
        "probability": decision.probability if decision else None,
        "fallback": decision.fallback_reason if decision else None,
        "shadow": list(shadow) if shadow else None,
        "decision_s": decision.seconds if decision else None,
        **kept,
    }


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


def _message(body: bytes) -> str:
    try:
        said = orjson.loads(body)
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    if isinstance(said, dict) and "error" in said:
        return error_text(said["error"])
    return error_text(said.get("message") or said.get("detail") if isinstance(said, dict) else said)
