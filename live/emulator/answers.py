"""How answers are written: vLLM's objects and events, for completions and chats, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from . import tokens
from .faults import Fault
from .generation import FinishReason, Generation
from .http_server import Exchange

FINGERPRINT = "vllm-0.32.0-emulated"

SERVER_ERROR = {
    "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
}

_ERROR_EVENT = b"data: " + orjson.dumps(SERVER_ERROR) + b"\n\n"
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Wish:
    """How a client wants its answer.

    Attributes:
        kind: completion or chat.
        answer_id: `id` of the answer.
        created: wall time, s.
        model: its name.
        prompt: tokens of the prompt if they are to be told, else None.
        token_ids: tokens of the answer are told.
        usage: a stream ends with the counts.
        running_usage: every event of a stream has counts.
    """

    kind: Literal["completion", "chat"]
    answer_id: str
    created: int
    model: str
    prompt: list[int] | None = None
    token_ids: bool = False
    usage: bool = False
    running_usage: bool = False


class Reply:
    """The answer to one request.

    Args:
        exchange: where it goes.
        wish: how.
        generation: the request on the engine.
        fault: breaks off the answer, `stream_error` or `drop_connection`.
        give_up: ends the request on the engine.
        later: calls a function after engine seconds.
        late: the prefill leg's answer comes late.
        without_parameters: the prefill leg's answer lacks its `kv_transfer_params`.
    """

    def __init__(
        self,
        exchange: Exchange,
        wish: Wish,
        generation: Generation,
        *,
        fault: Fault | None,
        give_up: Callable[[], None],
        later: Callable[[float, Callable[[], None]], None],
        late: Fault | None = None,
        without_parameters: bool = False,
    ) -> None:
        self._exchange = exchange
        self._wish = wish
        self._generation = generation
        self._fault = fault
        self._give_up = give_up
        self._later = later
        self._late = late
        self._without_parameters = without_parameters

    # --- Listener -------------------------------------------------------------------------------------

    def prefilled(self, parameters: dict[str, Any]) -> None:
        """Answers a prefill leg."""
        if self._breaks_off_whole():
            return
        told = None if self._without_parameters else parameters
        answer: Callable[[], None] = lambda: self._whole("length", told)  # noqa: E731
        if self._late is not None and self._late.seconds is not None:
            self._later(self._late.seconds, answer)
        else:
            answer()

    def came(self, new: Sequence[int]) -> None:
        """Looks whether the answer breaks off here."""
        self._breaks_off(new)

    def finished(self, reason: FinishReason) -> None:
        """Answers."""
        if not self._exchange.done and not self._breaks_off_whole():
            self._whole(reason, None)

    def failed(self) -> None:
        """Answers with an error."""
        if not self._exchange.done:
            self._exchange.reply_json(500, SERVER_ERROR)

    # --------------------------------------------------------------------------------------------------

    def _breaks_off(self, new: Sequence[int]) -> bool:
        """Whether the answer broke off before these tokens."""
        fault = self._fault
        if fault is None or fault.tokens is None or len(self._generation.tokens) < max(1, fault.tokens):
            return False
        before = fault.tokens - (len(self._generation.tokens) - len(new))
        self._some(new[: max(0, before)])
        self._break_off(fault)
        self._give_up()
        return True

    def _breaks_off_whole(self) -> bool:
        """Whether an answer that is given at once, on a prefill engine, breaks off instead."""
        fault = self._fault
        if fault is None or fault.tokens is None or fault.tokens > len(self._generation.tokens):
            return False
        self._break_off(fault)
        return True

    def _break_off(self, fault: Fault) -> None:
        if fault.kind == "drop_connection":
            self._exchange.cut()
        else:
            self.failed()

    def _some(self, new: Sequence[int]) -> None:
        """Sends tokens that come before a break."""

    def _counts(self, output: int) -> dict[str, int]:
        prompt = self._generation.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    def _cached(self) -> int:
        return self._generation.prompt_tokens if self._generation.remote is not None else 0

    def _whole(self, reason: FinishReason, parameters: dict[str, Any] | None) -> None:
        if self._exchange.done:
            return
        wish, said = self._wish, self._generation.tokens
        told = said if wish.token_ids else None
        choice: dict[str, Any] = {"index": 0}
        end: dict[str, Any]
        details = {"cached_tokens": self._cached(), "created_cache_tokens": None, "multimodal_tokens": None}
        end = {
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                **self._counts(len(said)),
                "prompt_tokens_details": details,
                "completion_tokens_details": None,
            },
        }
        if wish.kind == "completion":
            name = "text_completion"
            choice |= {"text": tokens.decode(said), "logprobs": None, "finish_reason": reason, "stop_reason": None}
            choice |= {"token_ids": told, "prompt_logprobs": None, "prompt_token_ids": wish.prompt}
        else:
            name = "chat.completion"
            absent = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            choice["message"] = {"role": "assistant", "content": tokens.decode(said), **absent}
            choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": told}
            end |= {"prompt_logprobs": None, "prompt_token_ids": wish.prompt, "prompt_text": None}
        choice["routed_experts"] = None
        start = {"id": wish.answer_id, "object": name, "created": wish.created, "model": wish.model}
        last = {"kv_transfer_params": parameters, "ec_transfer_params": None, "metrics": None}
        self._exchange.reply_json(200, {**start, "choices": [choice], **end, **last})


class Stream(Reply):
    """An answer in server-sent events, one for each token; those of tokens that are due together are sent together."""

    _begun = False
    _sent = 0

    def prefilled(self, parameters: dict[str, Any]) -> None:
        """Answers a prefill leg: a stream has no place for its parameters, and its KV stays where it is."""
        if not self._breaks_off_whole():
            self._send(self._events(self._generation.tokens, "length") + self._end())

    def came(self, new: Sequence[int]) -> None:
        """Sends tokens."""
        if not self._breaks_off(new) and len(self._generation.tokens) < self._generation.output:
            self._some(new)

    def finished(self, reason: FinishReason) -> None:
        """Sends what is left, and the end."""
        if not self._exchange.done and not self._breaks_off_whole():
            rest = self._generation.tokens[self._sent :]
            self._send(self._events(rest, reason) + self._end())

    def failed(self) -> None:
        """Sends an error, with which the stream ends."""
        if not self._exchange.done:
            self._send([_ERROR_EVENT, _DONE])

    def _some(self, new: Sequence[int]) -> None:
        if new:
            self._send(self._events(new, None), last=False)

    def _send(self, events: list[bytes], *, last: bool = True) -> None:
        if not self._begun:
            self._begun = True
            self._exchange.begin_events()
        self._exchange.send(b"".join(events), last=last)

    def _events(self, new: Sequence[int], reason: FinishReason | None) -> list[bytes]:
        """Events of tokens; with a reason the last of them ends the answer."""
        events = [] if self._sent else self._opening()
        count = len(new)
        for place, token in enumerate(new):
            self._sent += 1
            events.append(self._event(token, reason if place == count - 1 else None))
        return events

    def _opening(self) -> list[bytes]:
        """What comes before the first token, and the parts that all events share."""
        wish = self._wish
        chat = wish.kind == "chat"
        name = "chat.completion.chunk" if chat else "text_completion"
        start = {"id": wish.answer_id, "object": name, "created": wish.created, "model": wish.model}
        self._start = orjson.dumps(start)[:-1]
        before = b'"delta":{"content":"' if chat else b'"text":"'
        after = b'"},' if chat else b'",'
        self._before = b"data: " + self._start + b',"choices":[{"index":0,' + before
        self._after = after + b'"logprobs":null,"finish_reason":'
        if not chat:
            return []
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        more: dict[str, Any] = {"prompt_token_ids": wish.prompt, "prompt_text": None}
        if wish.running_usage:
            more["usage"] = self._counts(0)
        return [self._object({"choices": [choice], **more})]

    def _event(self, token: int, reason: FinishReason | None) -> bytes:
        wish = self._wish
        chat = wish.kind == "chat"
        text = b"" if token == tokens.END else tokens.spoken(token)
        ending = b"null" if reason is None else b'"%b"' % reason.encode()
        stop = b"" if chat and reason is None else b',"stop_reason":null'
        prompt = b""
        if not chat:
            known = wish.prompt if self._sent == 1 else None
            prompt = b',"prompt_token_ids":' + (b"null" if known is None else orjson.dumps(known))
        told = b"[%d]" % token if wish.token_ids else b"null"
        usage = b""
        if wish.running_usage:
            usage = b',"usage":' + orjson.dumps(self._counts(self._sent))
        if reason is not None and not wish.usage:
            usage += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        rest = b'%b%b%b,"token_ids":%b}]%b}\n\n' % (ending, stop, prompt, told, usage)
        return self._before + text + self._after + rest

    def _end(self) -> list[bytes]:
        if not self._wish.usage:
            return [_DONE]
        details: dict[str, Any] = {"cached_tokens": self._cached()}
        if self._wish.kind == "chat":
            details["created_cache_tokens"] = None
        counts = {**self._counts(self._sent), "prompt_tokens_details": details}
        return [self._object({"choices": [], "usage": counts, "system_fingerprint": FINGERPRINT}), _DONE]

    def _object(self, more: dict[str, Any]) -> bytes:
        return b"data: " + self._start + b"," + orjson.dumps(more)[1:] + b"\n\n"
