"""The two-leg protocol of vLLM with NixlConnector (seen in 0.12 to 0.32).

The *prefill leg* is the request with one token of output, never streamed: a streamed one gives no parameters and
strands its KV blocks. Its answer carries `kv_transfer_params`. The *decode leg* is the request as the client wrote it
with these parameters, whole and as they came; the decode engine then pulls the KV from the prefill engine. Both legs
must be sent the same `X-Request-Id`: before 0.13 that is all by which the engines know that they speak of one request.

What a prefill leg left behind is good for a while only, its *lease*. A decode leg after that may read blocks of another
request and answer 200 with wrong tokens, so the router keeps a deadline of its own, well below the lease.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .excerpt import excerpt

Body = dict[str, Any]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

PARAMETERS = "kv_transfer_params"

ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Parameters of a prefill leg: keep the KV for somebody who comes for it. vLLM 0.12 looks up the empty fields too when
its buffer is in the host's memory, and dies where they are missing."""

LEASE_SHARE = 0.5
"""Part of the lease within which a decode leg must be on its way."""

NAMED_SINCE = (0, 13)
"""First version of vLLM whose prefill engine names the request in its parameters (vllm-project/vllm#29665); without the
name newer decode engines hang, and die when the client goes."""

_NOT_ON_PREFILL = ("max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "stream_options")
"""What one token cannot fulfil, or what could stop it: up to 0.20 at least, a prefill leg that ends by anything but its
length (even by the model's end token) hands nothing over."""


class BadHandover(ValueError):
    """A prefill engine answered with parameters that no decode engine can use."""


def prefill_leg(body: Body) -> Body:
    """The prefill leg of a request.

    Args:
        body: the request.

    Returns:
        A body of its own; the prompt is shared.
    """
    leg = {key: value for key, value in body.items() if key not in _NOT_ON_PREFILL}
    return leg | {"max_tokens": 1, "ignore_eos": True, "stream": False, PARAMETERS: dict(ASK)}


def decode_leg(body: Body, parameters: dict[str, Any]) -> Body:
    """The decode leg of a request.

    A streamed one always asks for the final counts: the router's own count of events is not exact.

    Args:
        body: the request.
        parameters: what the prefill leg's answer carried, from `handover`.
    """
    leg = body | {PARAMETERS: parameters}
    return counted(leg) if body.get("stream") else leg


def counted(body: Body) -> Body:
    """A streamed request that asks for the final counts."""
    options = body.get("stream_options")
    return body | {"stream_options": (options if isinstance(options, dict) else {}) | {"include_usage": True}}


def handover(answer: Any, version: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The parameters in a prefill leg's answer, if a decode engine can use them.

    Args:
        answer: decoded JSON.
        version: of the prefill engine, such as (0, 12, 0); None: unknown, taken for a new one.

    Raises:
        BadHandover: they are missing or not whole; says what is.
    """
    parameters = answer.get(PARAMETERS) if isinstance(answer, dict) else None
    if not isinstance(parameters, dict) or not parameters:
        raise BadHandover(f"the prefill answer carries no {PARAMETERS}")
    named = version is None or version >= NAMED_SINCE
    for key, fits, what in _NEEDED:
        value = parameters.get(key)
        if fits(value) or (key == "remote_request_id" and value is None and not named):
            continue
        given = "missing" if key not in parameters else excerpt(value)
        raise BadHandover(f"{key} is {given}; it must be {what}")
    return parameters


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _port(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 65_535


def _blocks(value: Any) -> bool:
    """A list of blocks (up to 0.16), or one list for each group of layers, of which some may be empty.

    The prefill engine lists all blocks of the prompt, those too that it found in its prefix cache, so there is always
    one. A decode engine that was sent none would wait for nothing, or die.
    """
    if not isinstance(value, list):
        return False
    groups = value if all(isinstance(group, list) for group in value) else [value]
    return any(groups) and all(type(block) is int and block >= 0 for group in groups for block in group)


_NEEDED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("do_remote_prefill", lambda value: value is True, "true"),
    ("remote_engine_id", _text, "text that is not empty"),
    ("remote_host", _text, "text that is not empty"),
    ("remote_port", _port, "a port"),
    ("remote_block_ids", _blocks, "a list of block numbers that is not empty, or one for each group of layers"),
    ("remote_request_id", _text, "text that is not empty"),
)
"""What a decode engine cannot do without, whether a value will do, and what it must be."""


def version_of(text: Any) -> tuple[int, ...] | None:
    """Numbers of a version such as 0.16.1rc2; None if there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found.groups() if part is not None) if found else None

