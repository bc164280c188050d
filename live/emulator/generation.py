"""One request on an emulated engine: its tokens and its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from . import tokens

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Remote:
    """Where the KV of a decode leg is: the parameters that the prefill leg answered with, as far as they are there."""

    engine_id: str | None
    request_id: str | None
    blocks: list[int] | None
    host: str | None
    port: int | None

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> Remote:
        """Reads `kv_transfer_params`. Blocks come in groups; there is one group here."""
        groups = parameters.get("remote_block_ids")
        blocks = None
        if isinstance(groups, list):
            blocks = [b for group in groups for b in (group if isinstance(group, list) else [group])]
            if not all(isinstance(block, int) for block in blocks):
                blocks = None
        return cls(
            engine_id=parameters.get("remote_engine_id"),
            request_id=parameters.get("remote_request_id"),
            blocks=blocks,
            host=parameters.get("remote_host"),
            port=parameters.get("remote_port"),
        )

    def missing(self) -> tuple[str, ...]:
        """Parameters without which nothing is pulled."""
        fields = ("engine_id", "request_id", "host", "port")
        return tuple(f"remote_{name}" for name in fields if getattr(self, name) is None)


class Listener(Protocol):
    """Who wants to know how a request goes on."""

    def prefilled(self, parameters: dict[str, Any]) -> None:
        """The prefill leg is done; these are its `kv_transfer_params`."""

    def came(self, new: Sequence[int]) -> None:
        """Tokens came out. Told of watched requests only."""

    def finished(self, reason: FinishReason) -> None:
        """All tokens are out."""

    def failed(self) -> None:
        """The engine gave it up."""


@dataclass(eq=False)
class Generation:
    """A request on an engine.

    Attributes:
        request_id: the engine's name for it, unlike any other.
        prompt_tokens: number of prompt tokens.
        prompt: digest of the prompt.
        output: number of tokens that will come out.
        listener: told how it goes on; None once nobody listens.
        ends_early: the answer ends by itself, with an end token.
        most: tokens that were allowed.
        hold: the prefill leg: its KV is held for a decode engine.
        remote: the decode leg: where its KV is.
        watched: the listener is told of tokens as they come, not only of the end.
        key: the engine model's name for it.
        tokens: what came out.
        submitted: ps, likewise `joined`, `first` and `last` (token), -1 before.
        preemptions: how often it was preempted.
        pulling: its pull was started.
        outcome: how it counts if it does not finish.
    """

    request_id: str
    prompt_tokens: int
    prompt: int
    output: int
    listener: Listener | None
    ends_early: bool = False
    most: int = 0
    hold: bool = False
    remote: Remote | None = None
    watched: bool = False
    key: int = -1
    tokens: list[int] = field(default_factory=list)
    submitted: int = -1
    joined: int = -1
    first: int = -1
    last: int = -1
    preemptions: int = 0
    pulling: bool = False
    outcome: Literal["abort", "error"] = "abort"

    def __post_init__(self) -> None:
        self._answer = tokens.Answer(self.prompt)

    @property
    def reason(self) -> FinishReason:
        """Why it ends where it ends."""
        return "stop" if self.ends_early else "length"

    def has_pulled(self, kv: int) -> None:
        """The engine now has this KV (a digest) for the prompt, whatever the prompt is."""
        self._answer = tokens.Answer(kv)

    def recomputed(self) -> None:
        """The engine has computed the KV of the prompt and of the answer so far anew."""
        self._answer = tokens.Answer(self.prompt)
        for token in self.tokens:
            self._answer.feed(token)

    def bring_to(self, count: int) -> list[int]:
        """The tokens that are new when `count` are out."""
        old = len(self.tokens)
        for place in range(old, count):
            last = self.ends_early and place == self.output - 1
            self.tokens.append(tokens.END if last else self._answer.next_token())
        return self.tokens[old:]
