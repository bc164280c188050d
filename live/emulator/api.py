"""vLLM's HTTP endpoints, on an emulated engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal
from uuid import uuid4

import orjson
from pydantic import TypeAdapter, ValidationError

from ...envs.cluster import PS_PER_S
from . import measurements, tokens
from .answers import SERVER_ERROR, Reply, Stream, Wish
from .decode_legs import DecodeLegs
from .engine_loop import EngineLoop
from .faults import ONCE, Fault, Faults
from .generation import Generation, Remote
from .http_server import Exchange
from .request_body import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Refusal,
    TokenizeBody,
    read,
)

VERSION = "0.32.0"
"""The version of vLLM that is emulated."""

_log = logging.getLogger(__name__)
_FAULTS = TypeAdapter(list[Fault])


class Api:
    """Answers requests.

    Args:
        loop: the engine.
        model: its name.
        faults: those that are set.
        happen: does what a fault that happens at once does.
        resume: ends a stall.
        hazards: a malformed decode leg does harm.
    """

    def __init__(
        self,
        loop: EngineLoop,
        model: str,
        faults: Faults,
        happen: Callable[[Fault], None],
        resume: Callable[[], None],
        *,
        hazards: bool,
    ) -> None:
        self._loop = loop
        self._model = model
        self._faults = faults
        self._happen = happen
        self._resume = resume
        self._hazards = hazards
        self._created = int(time.time())
        self._engine_name = uuid4().hex[:16]
        self._stalled: list[Exchange] = []
        self._routes: dict[str, dict[str, Callable[[Exchange], None]]] = {
            "/v1/completions": {"POST": lambda exchange: self._generate(exchange, "completion")},
            "/v1/chat/completions": {"POST": lambda exchange: self._generate(exchange, "chat")},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": lambda exchange: exchange.reply_json(200, {"version": VERSION})},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
            "/emulator/faults": {"GET": self._list_faults, "POST": self._set_faults, "DELETE": self._clear_faults},
        }

    def handle(self, exchange: Exchange) -> None:
        """Answers a request, now or later."""
        name = exchange.headers.get(b"x-request-id") or uuid4().hex.encode()
        exchange.answer_headers = b"server: disaggroute\r\nx-request-id: " + name + b"\r\n"
        if self._loop.clock.stopped and not exchange.path.startswith("/emulator/"):
            self._stalled.append(exchange)
            return
        methods = self._routes.get(exchange.path)
        if methods is None:
            exchange.reply_json(404, {"detail": "Not Found"})
        elif exchange.method not in methods:
            exchange.answer_headers += b"allow: " + ", ".join(methods).encode() + b"\r\n"
            exchange.reply_json(405, {"detail": "Method Not Allowed"})
        else:
            try:
                methods[exchange.method](exchange)
            except Refusal as refusal:
                exchange.reply_json(refusal.status, refusal.content)
            except Exception:
                _log.exception("%s %s", exchange.method, exchange.path)
                exchange.reply_json(500, SERVER_ERROR)

    def go_on(self) -> None:
        """Answers what came while the engine stood still."""
        stalled, self._stalled = self._stalled, []
        for exchange in stalled:
            self.handle(exchange)

    # --- generation -----------------------------------------------------------------------------------

    def _generate(self, exchange: Exchange, kind: Literal["completion", "chat"]) -> None:
        if self._faults.take("error_500") is not None:
            exchange.reply_json(500, SERVER_ERROR)
            return
        body: Body = read(CompletionBody if kind == "completion" else ChatBody, exchange.body)
        try:
            generation, prompt = self._generation(exchange, body, kind)
        except Refusal:
            self._give_back_kv(body)
            raise
        stream = bool(body.stream)
        fault = self._faults.take("stream_error") or self._faults.take("drop_connection")
        generation.watched = stream or fault is not None
        options = body.stream_options if stream else None
        wish = Wish(
            kind=kind,
            answer_id=generation.request_id.rsplit("-", 2 if kind == "completion" else 1)[0],
            created=int(time.time()),
            model=self._model,
            prompt=prompt if body.return_token_ids else None,
            token_ids=bool(body.return_token_ids),
            usage=options is not None and options.include_usage,
            running_usage=options is not None and options.include_usage and options.continuous_usage_stats,
        )
        give_up: Callable[[], None] = lambda: self._loop.abort(generation)  # noqa: E731
        generation.listener = (Stream if stream else Reply)(
            exchange,
            wish,
            generation,
            fault=fault,
            give_up=give_up,
            later=self._later,
            late=self._faults.take("late_kv_params") if generation.hold and not stream else None,
            without_parameters=generation.hold and self._faults.take("missing_kv_params") is not None,
        )
        exchange.on_disconnect = lambda: self._gone(generation)
        local = generation.remote is None and self._loop.engine.role == "decode"
        self._loop.submit(generation, local=local)
        legs = self._loop.legs
        if isinstance(legs, DecodeLegs):
            legs.submitted(generation)

    def _generation(
        self, exchange: Exchange, body: Body, kind: Literal["completion", "chat"]
    ) -> tuple[Generation, list[int]]:
        """The request for the engine, and its prompt.

        Raises:
            Refusal: it is not served.
        """
        self._check_model(body.model)
        body.check()
        prompt = body.prompt_tokens()
        most = self._most_tokens(body, len(prompt))
        digest = tokens.digest(prompt)
        output = most
        if not (body.ignore_eos or body.min_tokens == most):
            hint = body.vllm_xargs.output_tokens if body.vllm_xargs is not None else None
            output = tokens.length(digest, body.min_tokens, most) if hint is None else min(hint, most)
        hold, remote = self._legs(body.kv_transfer_params or {}, output)
        name = exchange.headers.get(b"x-request-id", b"").decode("latin-1") or body.request_id or uuid4().hex[:16]
        full_name = f"cmpl-{name}-0" if kind == "completion" else f"chatcmpl-{name}"
        generation = Generation(
            request_id=f"{full_name}-{uuid4().hex[:8]}",
            prompt_tokens=len(prompt),
            prompt=digest,
            output=output,
            listener=None,
            ends_early=output < most,
            most=most,
            hold=hold,
            remote=remote,
        )
        try:
            self._loop.engine.check_fits(generation.request_id, len(prompt), output)
        except ValueError as error:
            raise Refusal(str(error)) from None
        return generation, prompt

    def _most_tokens(self, body: Body, prompt: int) -> int:
        """The largest number of tokens that may come out."""
        limit = self._loop.engine.spec.max_model_len
        if prompt >= limit:
            raise Refusal(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                f"input prompt. (parameter=input_tokens, value={prompt})",
                param="input_tokens",
            )
        asked = body.asked_tokens()
        if asked is not None and asked < 1:
            message = f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
            raise Refusal(message, param="max_tokens")
        most = limit - prompt if asked is None else min(asked, limit - prompt)
        if body.min_tokens > most:
            raise Refusal(
                f"min_tokens must be less than or equal to max_tokens={most}, got {body.min_tokens}.",
                param="min_tokens",
            )
        return most

    def _legs(self, parameters: dict[str, Any], output: int) -> tuple[bool, Remote | None]:
        """Whether this is a prefill leg, and where the KV of a decode leg is."""
        role = self._loop.engine.role
        hold, pull = bool(parameters.get("do_remote_decode")), bool(parameters.get("do_remote_prefill"))
        if (hold and role != "prefill") or (pull and role != "decode"):
            leg = "do_remote_decode" if hold else "do_remote_prefill"
            raise Refusal(f"The emulated {role} engine does not do {leg}", param="kv_transfer_params")
        if role == "prefill" and output != 1:
            raise Refusal("The emulated prefill engine gives one token only: max_tokens must be 1", param="max_tokens")
        if not pull:
            return hold, None
        remote = Remote.of(parameters)
        absent = [*remote.missing(), *([] if remote.blocks else ["remote_block_ids"])]
        if absent and not self._hazards:
            raise Refusal(f"kv_transfer_params lacks {', '.join(absent)}", param="kv_transfer_params")
        return hold, remote

    def _give_back_kv(self, body: Body) -> None:
        """A decode leg is refused: the KV that a prefill engine holds for it is not wanted."""
        legs = self._loop.legs
        if isinstance(legs, DecodeLegs) and (body.kv_transfer_params or {}).get("do_remote_prefill"):
            legs.drop(Remote.of(body.kv_transfer_params or {}))

    def _gone(self, generation: Generation) -> None:
        """The client is gone."""
        legs = self._loop.legs
        if isinstance(legs, DecodeLegs):
            legs.aborting(generation)
        self._loop.abort(generation)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._loop.at(self._loop.clock.now() + round(seconds * PS_PER_S), lambda _: action())

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            raise Refusal(
                f"The model `{name}` does not exist. Valid aliases: {self._model}.",
                param="model",
                kind="NotFoundError",
                status=404,
            )

    # --- the rest -------------------------------------------------------------------------------------

    def _models(self, exchange: Exchange) -> None:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._loop.engine.spec.max_model_len,
            "permission": [
                {
                    "id": f"modelperm-{self._engine_name}",
                    "object": "model_permission",
                    "created": self._created,
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }
        exchange.reply_json(200, {"object": "list", "data": [card]})

    def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self._faults.take("unhealthy") is not None else 200)

    def _metrics(self, exchange: Exchange) -> None:
        text = self._loop.measurements.text(
            self._loop.usage(),
            self._loop.legs.in_transit,
            old_names=self._faults.take("old_metric_names") is not None,
        )
        exchange.reply(200, text.encode(), measurements.CONTENT_TYPE.encode())

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        """There is no prefix cache; vLLM refuses while a block is in use."""
        exchange.reply_json(200, {"success": self._loop.usage().used == 0})

    def _tokenize(self, exchange: Exchange) -> None:
        body: TokenizeBody = read(TokenizeBody, exchange.body)
        self._check_model(body.model)
        found = body.tokens()
        limit = self._loop.engine.spec.max_model_len
        exchange.reply_json(
            200, {"count": len(found), "max_model_len": limit, "tokens": found, "token_strs": None}
        )

    def _detokenize(self, exchange: Exchange) -> None:
        body: DetokenizeBody = read(DetokenizeBody, exchange.body)
        self._check_model(body.model)
        exchange.reply_json(200, {"prompt": tokens.decode(body.tokens)})

    def _list_faults(self, exchange: Exchange) -> None:
        exchange.reply_json(200, {"faults": [fault.model_dump(exclude_none=True) for fault in self._faults]})

    def _set_faults(self, exchange: Exchange) -> None:
        try:
            data = orjson.loads(exchange.body)
            faults = _FAULTS.validate_python(data if isinstance(data, list) else [data])
        except orjson.JSONDecodeError as error:
            raise Refusal(f"The body is no JSON: {error}") from None
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            where = ".".join(map(str, found["loc"][1:]))
            raise Refusal(f"{where + ': ' if where else ''}{found['msg']}", param=where or None) from None
        for fault in faults:
            if fault.kind in ONCE:
                self._happen(fault)
            else:
                self._faults.set(fault)
        self._list_faults(exchange)

    def _clear_faults(self, exchange: Exchange) -> None:
        self._faults.clear()
        self._resume()
        self._list_faults(exchange)
