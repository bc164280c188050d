"""The two-leg protocol of vLLM with NixlConnector (seen in 0.12 to 0.32).

The *prefill leg* is the request with one token of output, never streamed: a streamed one gives no parameters and
strands its KV blocks. Its answer carries `kv_transfer_params`. The *decode leg* is the request as the client wrote it
with these parameters, whole and as they came; the decode engine then pulls the KV from the prefill engine.

What a prefill leg left behind is good for a while only, its *lease*. A decode leg after that may read blocks of another
request and answer 200 with wrong tokens, so the router keeps a deadline of its own, well below the lease.
"""

from __future__ import annotations

import re
from typing import Any

Body = dict[str, Any]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

PARAMETERS = "kv_transfer_params"

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
"""Parameters of a prefill leg: keep the KV for somebody who comes for it."""

LEASE_SHARE = 0.5
"""Part of the lease within which a decode leg must be on its way."""

NAMED_SINCE = (0, 16)
"""First version of vLLM whose prefill engine names the request in its parameters; without the name newer decode engines
hang, and die when the client goes."""

_SPENT_ON_PREFILL = ("min_tokens", "stream", "stream_options", "max_completion_tokens")


class BadHandover(ValueError):
    """A prefill engine answered with parameters that no decode engine can use."""


def prefill_leg(body: Body) -> Body:
    """The prefill leg of a request.

    Args:
        body: the request.

    Returns:
        A body of its own; the prompt is shared.
    """
    leg = {key: value for key, value in body.items() if key not in _SPENT_ON_PREFILL}
    return leg | {"max_tokens": 1, "stream": False, PARAMETERS: dict(ASK)}


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
    if parameters.get("do_remote_prefill") is not True:
        raise BadHandover(f"do_remote_prefill is {parameters.get('do_remote_prefill')!r}; it must be true")
    named = version is None or version >= NAMED_SINCE
    for key, kind in (
        ("remote_engine_id", str),
        ("remote_host", str),
        ("remote_port", int),
        ("remote_block_ids", list),
        *((("remote_request_id", str),) if named else ()),
    ):
        value = parameters.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or value in ("", []):
            what = "missing" if value is None else f"{value!r}"
            raise BadHandover(f"{key} is {what}; it must be a {kind.__name__} that is not empty")
    return parameters


def version_of(text: Any) -> tuple[int, ...] | None:
    """Numbers of a version such as 0.16.1rc2; None if there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found.groups() if part is not None) if found else None

