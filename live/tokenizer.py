"""Prompt lengths: how many tokens an engine will see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from .engine import Engine
from .http_client import Unreachable
from .request import Refused, Request
from .sse import error_text
from .two_legs import Body

if TYPE_CHECKING:
    from jinja2 import Environment

TIMEOUT_S = 10.0

MOST_ASKED = 3
"""Engines that are asked for one request."""

ASKED = (
    *("model", "prompt", "messages", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("tools", "documents", "chat_template_kwargs"),
)
"""What of a request shapes its prompt."""

CLIENTS_FAULT = (400, 413, 422)
"""By other answers an engine says something about itself: a key is wanted, the path is not there, it is busy."""

_READS_PARTS = re.compile(r"""\bfor\s+\w+\s+in\s[^%]*(\.content\b|\[['"]content['"]\])""")
"""A template that goes through the parts of a content; others take it for a text."""


class Tokenizer(Protocol):
    """Counts the prompt tokens of requests whose prompt is not given as token ids."""

    async def count(self, request: Request) -> int:
        """Tokens, ≥ 1.

        Raises:
            Refused: they cannot be counted.
        """


class BytesTokenizer:
    """One token per UTF-8 byte and a chat as ChatML: the emulator's and the tiny model's."""

    async def count(self, request: Request) -> int:
        """Tokens."""
        body = request.body
        if not request.chat:
            return max(len(body["prompt"].encode()), 1)
        tokens = sum(_turn(message) for message in body["messages"])
        return tokens + (BEGUN if body.get("add_generation_prompt") is not False else 0)


def _turn(message: dict[str, Any]) -> int:
    """Tokens of start, role, line end, text, end, line end: one for each of the four that are not text."""
    return len(f"{message.get('role')}{text(message.get('content'))}".encode()) + 4


BEGUN = 1 + len("assistant\n")
"""Tokens of the answer's beginning."""


class FileTokenizer:
    """The model's own, from `tokenizer.json` and the chat template of `tokenizer_config.json`.

    Args:
        folder: that holds them.

    Raises:
        ValueError: they are missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from jinja2 import TemplateError
        from tokenizers import Tokenizer as Model

        file = folder / "tokenizer.json"
        try:
            self._model = Model.from_file(str(file))
        except Exception as error:  # The library raises bare exceptions.
            raise ValueError(f"tokenizer is {folder}; {file} cannot be read ({error})") from None
        self._template: Any = None
        self._in_parts = False
        config, written = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            about = json.loads(config.read_text("utf-8")) if config.exists() else {}
            template = written.read_text("utf-8") if written.exists() else _default(about.get("chat_template"))
            self._names = {key: _token(about.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
            if template is not None:
                self._template = _environment().from_string(template)
                self._in_parts = _READS_PARTS.search(template) is not None
        except (OSError, ValueError, TypeError, AttributeError, TemplateError) as error:
            raise ValueError(f"tokenizer is {folder}; its chat template cannot be read ({error})") from None

    async def count(self, request: Request) -> int:
        """Tokens."""
        body = request.body
        if request.chat:
            prompt, special = self._rendered(body), body.get("add_special_tokens") is True
        else:
            prompt, special = body["prompt"], body.get("add_special_tokens") is not False
        return max(len(self._model.encode(prompt, add_special_tokens=special).ids), 1)

    def _rendered(self, body: Body) -> str:
        if self._template is None:
            raise Refused("the model's tokenizer has no chat template; use /v1/completions", param="messages")
        messages = body["messages"]
        if not self._in_parts:
            messages = [
                message | {"content": text(message["content"])} if isinstance(message.get("content"), list) else message
                for message in messages
            ]
        try:
            return str(
                self._template.render(
                    messages=messages,
                    add_generation_prompt=body.get("add_generation_prompt", True),
                    tools=body.get("tools"),
                    documents=body.get("documents"),
                    **self._names,
                    **(body.get("chat_template_kwargs") or {}),
                )
            )
        except Exception as error:  # Whatever a template makes of what a client wrote.
            said = error_text(str(error))
            raise Refused(f"messages do not fit the chat template ({said})", param="messages") from None


class EngineTokenizer:
    """Asks an engine (vLLM's `/tokenize`), which costs a round trip.

    Args:
        engines: gives those that may be asked.
    """

    def __init__(self, engines: Callable[[], list[Engine]]) -> None:
        self._engines = engines

    async def count(self, request: Request) -> int:
        """Tokens."""
        asked = orjson.dumps({name: request.body[name] for name in ASKED if name in request.body})
        for engine in self._engines()[:MOST_ASKED]:
            try:
                answer = await engine.client.fetch("POST", "/tokenize", asked, timeout=TIMEOUT_S)
                said = orjson.loads(answer.body)
            except (Unreachable, ValueError):
                continue
            if not isinstance(said, dict):
                continue
            count = said.get("count")
            if answer.status == 200 and type(count) is int:
                return max(int(count), 1)
            if answer.status in CLIENTS_FAULT:
                message = error_text(said.get("error", said.get("detail")))
                param = "messages" if request.chat else "prompt"
                raise Refused(f"the prompt cannot be tokenized: {message}", param=param)
        raise Refused(
            "no engine can count the prompt's tokens; try again later, or send token ids",
            status=503,
            kind="service_unavailable",
            retry_after_s=1,
        )


def make(tokenizer: str, engines: Callable[[], list[Engine]]) -> Tokenizer:
    """The tokenizer of a cluster.

    Args:
        tokenizer: `engine`, `bytes`, or a folder.
        engines: gives engines that may be asked.

    Raises:
        ValueError: the folder cannot be read.
    """
    if tokenizer == "engine":
        return EngineTokenizer(engines)
    return BytesTokenizer() if tokenizer == "bytes" else FileTokenizer(Path(tokenizer))


def text(content: Any) -> str:
    """The text of a message's content, which may come in parts: those of text, a line each, as vLLM joins them."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _environment() -> Environment:
    """What chat templates are written for: Jinja as the library of their models sets it up."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """JSON as it is: Jinja's own filter writes `<` and the like in six characters, for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _default(template: Any) -> str | None:
    """The template, or of several named ones the default."""
    if isinstance(template, list):
        template = next((each.get("template") for each in template if each.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise ValueError("chat_template is no text")
    return template


def _token(said: Any) -> Any:
    return said.get("content") if isinstance(said, dict) else said


def _raise(message: str) -> None:
    raise ValueError(message)
