"""What a client asks an engine for, read and checked as vLLM does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from . import tokens


class Refusal(Exception):
    """A request that is not served.

    Attributes:
        status: of the answer.
        content: of the answer.
    """

    def __init__(
        self, message: str, *, param: str | None = None, kind: str = "BadRequestError", status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Hints(BaseModel):
    """`vllm_xargs`: here, how long an answer that ends by itself shall be.

    Attributes:
        output_tokens: tokens, the end token included.
    """

    output_tokens: int | None = Field(None, ge=1)


class Body(BaseModel, ABC):
    """What completions and chats have in common. Other fields are read by vLLM, and not here.

    Sampling parameters change nothing: an answer follows from its prompt alone.
    """

    model: str | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    use_beam_search: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    request_id: str | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    vllm_xargs: Hints | None = None

    @abstractmethod
    def asked_tokens(self) -> int | None:
        """The largest number of tokens that is asked for."""

    @abstractmethod
    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt.

        Raises:
            Refusal: there is none, or not one that can be served.
        """

    def check(self) -> None:
        """Refuses what is not emulated.

        Raises:
            Refusal: names it.
        """
        for name, ignored in (("n", (None, 1)), ("use_beam_search", (False,)), ("stop", (None, [], ""))):
            if getattr(self, name) not in ignored:
                raise Refusal(f"The emulated engine does not do {name}={getattr(self, name)!r}", param=name)


class CompletionBody(Body):
    """The body of `/v1/completions`."""

    prompt: list[int] | str | list[str] | list[list[int]] | None = None
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None

    def asked_tokens(self) -> int | None:
        """The largest number of tokens that is asked for."""
        return self.max_tokens

    def prompt_tokens(self) -> list[int]:
        """The tokens of the prompt; a list of one prompt is that prompt."""
        prompt = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if not prompt:
            raise Refusal(
                "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt"
            )
        if isinstance(prompt, str):
            return tokens.encode(prompt)
        if not isinstance(prompt[0], int):
            raise Refusal("The emulated engine takes one prompt at a time", param="prompt")
        checked: list[int] = prompt
        for token in (min(checked), max(checked)):
            if not 0 <= token < tokens.VOCABULARY:
                raise Refusal(f"Token id {token} is out of vocabulary")
        return checked

    def check(self) -> None:
        """Refuses what is not emulated."""
        super().check()
        if self.echo or self.logprobs is not None:
            name = "echo" if self.echo else "logprobs"
            raise Refusal(f"The emulated engine does not do {name}={getattr(self, name)!r}", param=name)


class Part(BaseModel):
    """A part of a message."""

    type: str = "text"
    text: str | None = None


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        """Its text, parts joined by line ends.

        Raises:
            Refusal: a part is not text.
        """
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.text is None:
                raise Refusal(f"The emulated engine reads text, and no part of type {part.type!r}", param="messages")
        return "\n".join(part.text or "" for part in self.content)


class ChatBody(Body):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    logprobs: bool | None = False

    def asked_tokens(self) -> int | None:
        """The largest number of tokens that is asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt_tokens(self) -> list[int]:
        """The tokens of the conversation."""
        turns = [(message.role, message.text()) for message in self.messages]
        return tokens.encode_chat(turns, begin_answer=self.add_generation_prompt)

    def check(self) -> None:
        """Refuses what is not emulated."""
        super().check()
        if self.logprobs:
            raise Refusal("The emulated engine does not do logprobs=True", param="logprobs")


class TokenizeBody(BaseModel):
    """The body of `/tokenize`: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True

    def tokens(self) -> list[int]:
        """The tokens.

        Raises:
            Refusal: there is neither.
        """
        if self.messages is not None:
            turns = [(message.role, message.text()) for message in self.messages]
            return tokens.encode_chat(turns, begin_answer=self.add_generation_prompt)
        if self.prompt is None:
            raise Refusal("prompt or messages must be given", param="prompt")
        return tokens.encode(self.prompt)


class DetokenizeBody(BaseModel):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, lt=tokens.VOCABULARY)]]


def read(model: type[Any], raw: bytes) -> Any:
    """Reads a JSON body.

    Raises:
        Refusal: it is no JSON object, or a field is wrong; in vLLM's words.
    """
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        detail = {"type": "json_invalid", "loc": f"body.{error.pos}", "msg": "JSON decode error"}
        raise _invalid([detail], detail["loc"]) from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = [
            {
                "type": found["type"],
                "loc": ".".join(["body", *map(str, found["loc"])]),
                "msg": found["msg"],
                "input": _short(found["input"]),
            }
            for found in error.errors(include_url=False, include_context=False)
        ]
        raise _invalid(details, str(details[0]["loc"])) from None


def _short(value: object) -> object:
    """A value as an error shows it."""
    text = repr(value)
    return value if len(text) <= 100 else f"<{type(value).__name__}>"


def _invalid(details: list[dict[str, Any]], where: str) -> Refusal:
    count = len(details)
    lines = "".join(f"\n  {detail}" for detail in details)
    return Refusal(f"{count} validation error{'s' * (count > 1)}:{lines}", param=where, kind="Bad Request")
