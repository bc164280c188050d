"""Prompt lengths: how many tokens an engine will see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import orjson

from .engine import Engine
from .http_client import Unreachable
from .request import Refused, Request

TIMEOUT_S = 10.0


class Tokenizer(Protocol):
    """Counts the prompt tokens of requests whose prompt is not given as token ids."""

    async def count(self, request: Request) -> int:
        """Tokens, ≥ 1.

        Raises:
            Refused: they cannot be counted.
        """


class BytesTokenizer:
    """One token per UTF-8 byte, as the emulator's; a chat is its messages' texts with a token between them."""

    async def count(self, request: Request) -> int:
        """Tokens."""
        if not request.chat:
            prompt: str = request.body["prompt"]
            return max(len(prompt.encode()), 1)
        return sum(len(text(message.get("content")).encode()) + 1 for message in request.body["messages"])


class FileTokenizer:
    """The model's own, from `tokenizer.json` and the chat template of `tokenizer_config.json`.

    Args:
        folder: that holds them.

    Raises:
        ValueError: they are missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer as Model

        file = folder / "tokenizer.json"
        try:
            self._model = Model.from_file(str(file))
        except Exception as error:  # The library raises bare exceptions.
            raise ValueError(f"tokenizer is {folder}; {file} cannot be read ({error})") from None
        self._template: Any = None
        self._names: dict[str, Any] = {}
        config, written = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            about = json.loads(config.read_text()) if config.exists() else {}
            template = written.read_text() if written.exists() else about.get("chat_template")
            self._names = {key: _token(about.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
            if isinstance(template, str):
                environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
                environment.globals["raise_exception"] = _raise
                self._template = environment.from_string(template)
        except (OSError, ValueError, TemplateError) as error:
            raise ValueError(f"tokenizer is {folder}; its chat template cannot be read ({error})") from None

    async def count(self, request: Request) -> int:
        """Tokens."""
        if not request.chat:
            return int(max(len(self._model.encode(request.body["prompt"]).ids), 1))
        if self._template is None:
            raise Refused("the model's tokenizer has no chat template; use /v1/completions", param="messages")
        body = request.body
        try:
            prompt = self._template.render(
                messages=body["messages"],
                add_generation_prompt=body.get("add_generation_prompt", True),
                tools=body.get("tools"),
                **self._names,
                **(body.get("chat_template_kwargs") or {}),
            )
        except Exception as error:  # Whatever a template makes of what a client wrote.
            raise Refused(f"messages do not fit the chat template ({error})", param="messages") from None
        return int(max(len(self._model.encode(prompt, add_special_tokens=False).ids), 1))


class EngineTokenizer:
    """Asks an engine (vLLM's `/tokenize`), which costs a round trip.

    Args:
        engines: gives those that may be asked.
    """

    def __init__(self, engines: Callable[[], list[Engine]]) -> None:
        self._engines = engines

    async def count(self, request: Request) -> int:
        """Tokens."""
        body = request.body
        names = ("model", "prompt", "messages", "add_generation_prompt", "tools", "chat_template_kwargs")
        asked = orjson.dumps({name: body[name] for name in names if name in body})
        for engine in self._engines()[:3]:
            try:
                answer = await engine.client.fetch("POST", "/tokenize", asked, timeout=TIMEOUT_S)
                said = orjson.loads(answer.body)
            except (Unreachable, ValueError):
                continue
            count = said.get("count") if isinstance(said, dict) else None
            if answer.status == 200 and type(count) is int:
                return max(int(count), 1)
            if 400 <= answer.status < 500 and answer.status != 404:
                error = said.get("error") if isinstance(said, dict) else None
                message = error.get("message") if isinstance(error, dict) else said
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
    """The text of a message's content, which may come in parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _token(said: Any) -> Any:
    return said.get("content") if isinstance(said, dict) else said


def _raise(message: str) -> None:
    raise ValueError(message)
