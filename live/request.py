"""A client's request, checked: what the router must know of it, and what it refuses."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from ..envs.catalog import unknown
from ..envs.trace import SLO_CLASSES
from .two_legs import CHAT, Body

SLO_HEADER, OUTPUT_HEADER, ID_HEADER = b"x-disaggroute-slo", b"x-disaggroute-output-tokens", b"x-request-id"

SLO_KEY, OUTPUT_KEY = "slo", "output_tokens"
"""Fields of `metadata` that say the same as the headers."""

REFUSED = ("kv_transfer_params", "echo", "prompt_logprobs", "use_beam_search", "prompt_embeds", "suffix")
"""Parameters that two legs cannot serve, or that would let a client read what is not its own."""

ONE = ("n", "best_of")
"""Parameters of which only 1 can be served: a request is one sequence."""

MAX_TOKENS = 1 << 30

_prefix = uuid.uuid4().hex[:8]
_count = itertools.count()


class Refused(ValueError):
    """A request that gets an error in the API's own form.

    Args:
        message: a sentence.
        status: of HTTP.
        param: the field that is to blame.
        kind: the `type` of the error.
        retry_after_s: when to try again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        kind: str = "invalid_request_error",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.kind, self.retry_after_s = status, param, kind, retry_after_s

    @property
    def body(self) -> bytes:
        """The error, as JSON."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


@dataclass(slots=True)
class Request:
    """A request that may be routed.

    Attributes:
        id: of the client, or made here; engines are given it too.
        path: of the API.
        body: what the engines are sent.
        stream: whether the answer is streamed.
        show_usage: whether the client asked a stream for its final counts.
        slo: index into SLO_CLASSES.
        output_hint: expected output tokens, if the client says so.
        prompt: tokens, once counted; 0 before.
        limit: most output tokens that the client wants; None: as many as fit.
        arrival: ps of the router's clock.
    """

    id: str
    path: str
    body: Body
    stream: bool
    show_usage: bool
    slo: int
    output_hint: int | None
    prompt: int
    limit: int | None
    arrival: int

    @property
    def chat(self) -> bool:
        """Whether it is a chat."""
        return self.path == CHAT


def parse(path: str, body: bytes, headers: Mapping[bytes, bytes], model: str, arrival: int) -> Request:
    """Reads and checks a request.

    Args:
        path: of the API.
        body: JSON.
        headers: by lower-case name.
        model: that is served.
        arrival: ps of the router's clock.

    Raises:
        Refused: names the field, its value and what is allowed.
    """
    try:
        fields = orjson.loads(body)
    except ValueError as error:
        raise Refused(f"the body is not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise Refused(f"the body holds a {type(fields).__name__}; it must be a JSON object")
    asked = fields.get("model", model)
    if asked != model:
        text = f"The model {_shown(asked)} does not exist; this router serves {model!r}."
        raise Refused(text, status=404, param="model", kind="NotFoundError")
    for key in REFUSED:
        if fields.get(key):
            raise Refused(f"{key} is not supported by this router; leave it out", param=key)
    for key in ONE:
        if fields.get(key) not in (None, 1):
            raise Refused(f"{key} is {_shown(fields[key])}; only 1 is supported", param=key)
    stream = fields.get("stream") or False
    if not isinstance(stream, bool):
        raise Refused(f"stream is {_shown(stream)}; it must be true or false", param="stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused(f"stream_options is {_shown(options)}; it must be an object", param="stream_options")
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise Refused(f"metadata is {_shown(metadata)}; it must be an object", param="metadata")
    name = headers.get(ID_HEADER, b"").decode("latin-1")
    if len(name) > 200 or not name.isprintable():
        raise Refused("x-request-id must be up to 200 printable characters", param="x-request-id")
    limit = _whole(fields, "max_completion_tokens") if path == CHAT else None
    if limit is None:
        limit = _whole(fields, "max_tokens")
    return Request(
        id=name or f"{_prefix}-{next(_count)}",
        path=path,
        body=fields,
        stream=stream,
        show_usage=bool(options.get("include_usage")),
        slo=_slo(headers, metadata),
        output_hint=_hint(headers, metadata),
        prompt=_prompt_tokens(fields) if path != CHAT else _no_chat(fields),
        limit=limit if limit is not None or path == CHAT else 16,  # the API's default for completions
        arrival=arrival,
    )


def _prompt_tokens(fields: Body) -> int:
    """Tokens of a prompt that is given as token ids; 0 for a text."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        if not prompt:
            raise Refused("prompt is empty; it must hold at least one token", param="prompt")
        return 0
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        fields["prompt"] = prompt[0]  # a batch of one
        return _prompt_tokens(fields)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        raise Refused(f"prompt is a batch of {len(prompt)}; send them one by one", param="prompt")
    if not isinstance(prompt, list) or not prompt:
        what = "missing" if prompt is None else _shown(prompt)
        raise Refused(f"prompt is {what}; it must be a text or a list of token ids", param="prompt")
    if not all(type(token) is int and 0 <= token <= MAX_TOKENS for token in prompt):
        raise Refused("prompt holds something that is no token id; they are integers of at least 0", param="prompt")
    return len(prompt)


def _no_chat(fields: Body) -> int:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        what = "missing" if messages is None else _shown(messages)
        raise Refused(f"messages is {what}; it must be a list of at least one message", param="messages")
    return 0


def _whole(fields: Body, key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise Refused(f"{key} is {_shown(value)}; it must be an integer of at least 1", param=key)
    return value


def _slo(headers: Mapping[bytes, bytes], metadata: dict[str, Any]) -> int:
    given: Any = headers.get(SLO_HEADER)
    key = SLO_HEADER.decode() if given is not None else f"metadata.{SLO_KEY}"
    given = given.decode("latin-1") if given is not None else metadata.get(SLO_KEY, "loose")
    if given not in SLO_CLASSES:
        raise Refused(f"{key}: {unknown('SLO class', str(given), SLO_CLASSES)}", param=key)
    return SLO_CLASSES.index(given)


def _hint(headers: Mapping[bytes, bytes], metadata: dict[str, Any]) -> int | None:
    given: Any = headers.get(OUTPUT_HEADER)
    key = OUTPUT_HEADER.decode() if given is not None else f"metadata.{OUTPUT_KEY}"
    given = given.decode("latin-1") if given is not None else metadata.get(OUTPUT_KEY)
    if given is None:
        return None
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= MAX_TOKENS:
        raise Refused(f"{key} is {_shown(given)}; it must be an integer of at least 1", param=key)
    return int(text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


Status = Literal["finished", "failed", "rejected", "cancelled"]
"""How a request ended: all tokens came; an engine or the protocol failed it; it was not routed; the client left."""
