"""What a run sends: for each request of a trace its time, its body and its headers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ...envs.trace import SLO_CLASSES, Trace
from ..http_client import JSON
from ..request import ID_HEADER, OUTPUT_HEADER, SLO_HEADER

FIRST_TOKEN, TOKENS = 3, 256
"""Prompts are made of ids 3 to 258: after the special tokens of small vocabularies, and plain tokens in large ones."""


class Plan:
    """The requests of a run.

    Prompts are random token ids of exact length, of a stream of their own for each request: none shares a prefix with
    another one of this or of another run, so that no engine can have it in its cache.

    Args:
        trace: the requests.
        model: name under which it is served.
        name: of the run; together with a request's index the id under which engines and router know it.
        entropy: that the prompts follow from.
        predicted: (N,) ô that the router is told, tokens; None: it predicts itself.
    """

    def __init__(
        self,
        trace: Trace,
        model: str,
        name: str,
        entropy: tuple[int, ...],
        predicted: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.trace, self.name = trace, name
        self._model, self._entropy, self._predicted = model, entropy, predicted

    def __len__(self) -> int:
        """Requests."""
        return len(self.trace)

    def id(self, index: int) -> str:
        """Under which engines and router know a request."""
        return f"{self.name}-{index}"

    def prompt(self, index: int) -> list[int]:
        """Token ids of a request's prompt."""
        random = np.random.default_rng((*self._entropy, index))
        ids: list[int] = random.integers(FIRST_TOKEN, FIRST_TOKEN + TOKENS, int(self.trace.prompt[index])).tolist()
        return ids

    def body(self, index: int) -> bytes:
        """The request: exactly as many output tokens as the trace says, streamed."""
        output = int(self.trace.output[index])
        fields: dict[str, Any] = {"model": self._model, "prompt": self.prompt(index)}
        fields |= {"max_tokens": output, "min_tokens": output, "ignore_eos": True, "temperature": 0}
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return orjson.dumps(fields)

    def headers(self, index: int) -> bytes:
        """Lines of the head, each ended by CR LF."""
        lines = JSON + b"%b: %b\r\n" % (ID_HEADER, self.id(index).encode())
        lines += b"%b: %b\r\n" % (SLO_HEADER, SLO_CLASSES[self.trace.slo[index]].encode())
        if self._predicted is not None:
            lines += b"%b: %d\r\n" % (OUTPUT_HEADER, self._predicted[index])
        return lines
