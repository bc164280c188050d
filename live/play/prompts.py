"""Requests of a trace as engines take them: token ids of the exact lengths, which no cache has seen."""

from __future__ import annotations

import uuid

import numpy as np

from ...envs.cluster import PS_PER_S
from ...envs.trace import Trace
from ..request import Request
from ..two_legs import COMPLETIONS

LOWEST, HIGHEST = 3, 255
"""Token ids of prompts: ones that byte-level vocabularies have too; the first few are often special."""


class Requests:
    """Makes the requests of a trace.

    Args:
        trace: lengths, classes and targets.
        predicted: (N,) ô of a static predictor, tokens; None: the router learns it.
        model: that serves them.
        seed: of the prompts' tokens.
        episode: likewise: a trace that comes again has other prompts, so that no prefix cache knows them.
    """

    def __init__(
        self, trace: Trace, predicted: np.ndarray | None, model: str, seed: int, episode: int
    ) -> None:
        self._trace, self._predicted, self._model = trace, predicted, model
        self._key = seed, episode
        self._prefix = uuid.uuid4().hex[:12]  # Engines may still know the names of another process.

    def make(self, k: int, arrival: int) -> Request:
        """The k-th request.

        Args:
            k: index in the trace.
            arrival: ps of the router's clock.
        """
        trace = self._trace
        prompt, output = trace.prompt.item(k), trace.output.item(k)
        tokens = np.random.default_rng((*self._key, k)).integers(LOWEST, HIGHEST, prompt, endpoint=True)
        body = {
            "model": self._model,
            "prompt": tokens.tolist(),
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        return Request(
            id=f"{self._prefix}-{k}",
            path=COMPLETIONS,
            body=body,
            stream=True,
            show_usage=False,
            slo=trace.slo.item(k),
            output_hint=None if self._predicted is None else self._predicted.item(k),
            prompt=prompt,
            limit=output,
            arrival=arrival,
            ttft_target_s=trace.ttft_target.item(k) / PS_PER_S,
            tpot_target_s=trace.tpot_target.item(k) / PS_PER_S,
        )
