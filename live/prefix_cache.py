"""Asking an engine to empty its prefix cache."""

from __future__ import annotations

import orjson

from .http_client import HttpClient


class NoReset(RuntimeError):
    """An engine that cannot be asked to empty its prefix cache; the message is the status of its answer."""


async def reset_prefix_cache(client: HttpClient, timeout: float) -> bool:
    """Whether the engine has emptied its prefix cache; it does not while a block is in use.

    Args:
        client: of the engine.
        timeout: wall seconds for the answer.

    Raises:
        NoReset: it knows no such question, as real ones do unless VLLM_SERVER_DEV_MODE=1 is in their environment.
        Unreachable: no answer.
    """
    answer = await client.fetch("POST", "/reset_prefix_cache", headers=b"", timeout=timeout)
    if answer.status != 200:
        raise NoReset(str(answer.status))
    try:
        said = orjson.loads(answer.body or b"{}")
    except ValueError:
        return True
    return not (isinstance(said, dict) and said.get("success") is False)
