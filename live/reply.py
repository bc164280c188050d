"""The answer of an engine to one completion, read whole, with the time of every token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from .sse import DATA, DONE, END, error_text
from .two_legs import PARAMETERS


class Failed(RuntimeError):
    """An engine did not answer a request as it should; the message names it."""


@dataclass(frozen=True)
class Reply:
    """A whole answer of an engine.

    Attributes:
        tokens: ids of the answer; None where the engine does not tell them.
        text: of the answer.
        prompt_tokens: as the engine counts them.
        completion_tokens: as the engine counts them.
        cached_tokens: prompt tokens that it did not compute; None where it does not say.
        times: when each token was seen, s of the probe's clock; one time for all of an answer that is not streamed.
        sent: when the request was sent, s.
        parameters: what a prefill leg hands over.
    """

    tokens: tuple[int, ...] | None
    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    times: tuple[float, ...]
    sent: float
    parameters: dict[str, Any] | None = None

    @property
    def first_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.times[0] - self.sent

    @property
    def said(self) -> tuple[int, ...] | str:
        """What is compared: the tokens, or the text where they are not told."""
        return self.text if self.tokens is None else self.tokens


def read_whole(engine: str, body: bytes, sent: float, now: float) -> Reply:
    """Reads an answer that was not streamed.

    Args:
        engine: its name.
        body: JSON.
        sent: when the request was sent, s.
        now: when the answer had come, s.

    Raises:
        Failed: it is no completion.
    """
    try:
        said = orjson.loads(body)
        choice, usage = said["choices"][0], said["usage"]
        tokens = choice.get("token_ids")
        times = (now,) * max(1, int(usage["completion_tokens"]))
        return _reply(engine, tokens, str(choice["text"]), usage, times, sent, said.get(PARAMETERS))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Failed(f"{engine} answers with no completion: {body[:200]!r}") from None


def read_stream(engine: str, pieces: list[tuple[float, bytes]], sent: float) -> Reply:
    """Reads a stream.

    Args:
        engine: its name.
        pieces: bytes as they came, each with its time, s.
        sent: when the request was sent, s.

    Raises:
        Failed: it says that something went wrong, has no end, or is no completion.
    """
    tokens: list[int] | None = []
    text, usage, done = "", None, False
    times: list[float] = []
    for when, event in _events(pieces):
        if event == DONE:
            done = True
            continue
        try:
            said = orjson.loads(event)
            if "error" in said:
                raise Failed(f"{engine} breaks off after {len(times)} tokens: {error_text(said['error'])}")
            usage = said.get("usage") or usage
            for choice in said["choices"]:
                text += choice["text"]
                new = choice.get("token_ids")
                tokens = None if tokens is None or new is None else tokens + new
                times += [when] * (1 if new is None else len(new))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Failed(f"{engine} streams what is no event of a completion: {event[:200]!r}") from None
    if not done or not times or not isinstance(usage, dict):
        raise Failed(f"{engine} breaks off after {len(times)} tokens, without the end of its stream")
    return _reply(engine, tokens, text, usage, tuple(times), sent, None)


def _events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Events of a stream, each with the time at which its end came."""
    rest = b""
    for when, data in pieces:
        *whole, rest = (rest + data).replace(b"\r\n", b"\n").split(END)
        for event in whole:
            content = b"".join(line[len(DATA) :].strip() for line in event.split(b"\n") if line.startswith(DATA))
            if content:
                yield when, content


def _reply(
    engine: str,
    tokens: list[int] | None,
    text: str,
    usage: dict[str, Any],
    times: tuple[float, ...],
    sent: float,
    parameters: Any,
) -> Reply:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or type(output) is not int:
        raise Failed(f"{engine} does not count tokens: usage is {str(usage)[:200]}")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    told = None if tokens is None else tuple(tokens)
    handed = parameters if isinstance(parameters, dict) else None
    return Reply(told, text, prompt, output, cached if type(cached) is int else None, times, sent, handed)
