"""A client's request, checked: what the router must know of it, and what it refuses."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from ..envs.catalog import unknown
from ..envs.trace import SLO_CLASSES
from .excerpt import excerpt
from .two_legs import CHAT, Body

SLO_HEADER, OUTPUT_HEADER, ID_HEADER = b"x-disaggroute-slo", b"x-disaggroute-output-tokens", b"x-request-id"

SLO_KEY, OUTPUT_KEY = "slo", "output_tokens"
"""Fields of `metadata` that say the same as the headers."""

NOT_A_CLIENTS = ("kv_transfer_params", "ec_transfer_params")
"""Parameters that would let a client read what is not its own; `vllm_xargs` may not smuggle them in either."""

REFUSED = (*NOT_A_CLIENTS, "echo", "prompt_logprobs", "use_beam_search", "prompt_embeds", "suffix")
"""Parameters that two legs cannot serve, and those."""

NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values by which a client does not ask for anything; 0 asks for the log probabilities of a prompt."""

ONE = ("n", "best_of")
"""Parameters of which only 1 can be served: a request is one sequence."""

MAX_TOKENS = 1 << 30

DEFAULT_TOKENS = 16
"""Output tokens of a completion that does not say, by the API."""

DEEPEST = 254
"""Lists and objects in one another that a body may have: as many as orjson writes; it reads more."""

LONGEST_ID = 200
"""Characters."""

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
        ttft_target_s: of the request, s; None: that of its class.
        tpot_target_s: likewise.
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
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None

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
    asked = fields.get("model")
    if asked is not None and asked != model:
        text = f"The model {excerpt(asked)} does not exist; this router serves {model!r}."
        raise Refused(text, status=404, param="model", kind="NotFoundError")
    _check_supported(fields)
    stream = _field(fields, "stream", False)
    options = _field(fields, "stream_options", {})
    metadata = _field(fields, "metadata", {})
    if options and not stream:
        raise Refused("stream_options is given, but stream is not true; leave it out", param="stream_options")
    limit = _whole(fields, "max_completion_tokens") if path == CHAT else None
    if limit is None:
        default = DEFAULT_TOKENS if path != CHAT and "max_tokens" not in fields else None
        limit = _whole(fields, "max_tokens") or default
    request = Request(
        id=_name(headers) or f"{_prefix}-{next(_count)}",
        path=path,
        body=fields,
        stream=stream,
        show_usage=bool(options.get("include_usage")),
        slo=_slo(headers, metadata),
        output_hint=_hint(headers, metadata),
        prompt=_prompt_tokens(fields) if path != CHAT else _messages(fields),
        limit=limit,
        arrival=arrival,
    )
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        _check_depth(fields)
    return request


def _check_depth(fields: Body) -> None:
    """Refuses what can be read, but not be written again for an engine."""
    try:
        orjson.dumps(fields)
    except TypeError:
        text = f"the body is nested too deeply; at most {DEEPEST} lists and objects may lie in one another"
        raise Refused(text) from None


def _check_supported(fields: Body) -> None:
    for key in REFUSED:
        value = fields.get(key)
        if type(value) in (int, float) or value not in NOTHING:
            raise Refused(f"{key} is not supported by this router; leave it out", param=key)
    inside = fields.get("vllm_xargs")
    for key in NOT_A_CLIENTS:
        if isinstance(inside, dict) and key in inside:
            raise Refused(f"vllm_xargs.{key} is not supported by this router; leave it out", param="vllm_xargs")
    for key in ONE:
        value = fields.get(key)
        if value is not None and not (type(value) is int and value == 1):
            raise Refused(f"{key} is {excerpt(value)}; only 1 is supported", param=key)


def _field(fields: Body, key: str, default: Any) -> Any:
    """A field that is true or false, or an object, as its default is."""
    value = fields.get(key)
    if value is None:
        return default
    if type(value) is not type(default):
        what = "true or false" if default is False else "an object"
        raise Refused(f"{key} is {excerpt(value)}; it must be {what}", param=key)
    return value


def _name(headers: Mapping[bytes, bytes]) -> str:
    """The client's name of the request, empty if it has none. Engines and answers get it too, in a header."""
    name = headers.get(ID_HEADER, b"")
    if len(name) > LONGEST_ID or not name.isascii() or not name.decode().isprintable():
        raise Refused(
            f"x-request-id is {excerpt(name)}; it must be up to {LONGEST_ID} printable ASCII characters",
            param="x-request-id",
        )
    return name.decode()


def _prompt_tokens(fields: Body) -> int:
    """Tokens of a prompt that is given as token ids; 0 for a text. A batch of one becomes what it holds."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise Refused(f"prompt is a batch of {len(prompt)}; send them one by one", param="prompt")
        prompt = fields["prompt"] = prompt[0]
    if prompt == "" or prompt == []:
        raise Refused("prompt is empty; it must hold at least one token", param="prompt")
    if isinstance(prompt, str):
        return 0
    if not isinstance(prompt, list):
        what = "missing" if prompt is None else excerpt(prompt)
        raise Refused(f"prompt is {what}; it must be a text or a list of token ids", param="prompt")
    if not all(type(token) is int and 0 <= token <= MAX_TOKENS for token in prompt):
        raise Refused("prompt holds something that is no token id; they are integers of at least 0", param="prompt")
    return len(prompt)


def _messages(fields: Body) -> int:
    """0: nobody has counted their tokens."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        what = "missing" if messages is None else excerpt(messages)
        raise Refused(f"messages is {what}; it must be a list of at least one message", param="messages")
    return 0


def _whole(fields: Body, key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise Refused(f"{key} is {excerpt(value)}; it must be an integer from 1 to {MAX_TOKENS}", param=key)
    return value


def _slo(headers: Mapping[bytes, bytes], metadata: dict[str, Any]) -> int:
    key, given = _said(headers, SLO_HEADER, metadata, SLO_KEY)
    if given is None:
        return SLO_CLASSES.index("loose")
    if given not in SLO_CLASSES:
        name = given[:LONGEST_ID] if isinstance(given, str) else excerpt(given)
        raise Refused(f"{key}: {unknown('SLO class', name, SLO_CLASSES)}", param=key)
    return SLO_CLASSES.index(given)


def _hint(headers: Mapping[bytes, bytes], metadata: dict[str, Any]) -> int | None:
    key, given = _said(headers, OUTPUT_HEADER, metadata, OUTPUT_KEY)
    if given is None:
        return None
    digits = given if isinstance(given, str) else str(given) if type(given) is int else ""
    if not re.fullmatch("[0-9]{1,10}", digits) or not 1 <= int(digits) <= MAX_TOKENS:
        raise Refused(f"{key} is {excerpt(given)}; it must be an integer from 1 to {MAX_TOKENS}", param=key)
    return int(digits)


def _said(headers: Mapping[bytes, bytes], header: bytes, metadata: dict[str, Any], key: str) -> tuple[str, Any]:
    """What a client says in a header or else in its metadata, and where; None: nothing."""
    given = headers.get(header)
    if given is not None:
        return header.decode(), given.decode("latin-1")
    return f"metadata.{key}", metadata.get(key)


Status = Literal["finished", "failed", "rejected", "cancelled"]
"""How a request ended: all tokens came; an engine or the protocol failed it; it was not routed; the client left."""
