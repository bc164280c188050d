"""Predictors that learn during a run (docs/model.md, "Predictors that learn during a run")."""

from __future__ import annotations

import numpy as np

from . import layout as L
from .arithmetic import log2_of, udiv
from .compile import inline
from .ledger import bump
from .memory import ld, ld32, ldc, ldc32, prefetch
from .slots import region, router_of, trace_row

UNKNOWN_OUTPUT = 128
"""Predicted output tokens before anything has been learned."""


@inline
def learner_at(S: int, router: int) -> int:
    """Address of a router's learner."""
    return region(S, L.H_O_LEARNER) + router * (L.LEARNER_WORDS * 8)


@inline
def mean_at(learner: int, cell: int) -> int:
    """Rounded mean of a (count, sum) pair that is not empty, at least 1."""
    count, total = ld(learner, cell), ld(learner, cell + 1)
    return max(1, udiv(2 * total + count, 2 * count))


@inline
def predict(S: int, router: int, request: int) -> int:
    """ô of a request of the trace."""
    row = trace_row(S, request)
    if ldc(S, L.H_LEARNS) == L.LEARN_NONE:
        return ldc32(row, L.T32_PREDICTED)
    return expected(S, router, ldc32(row, L.T32_PROMPT), ldc32(row, L.T32_WHO) >> L.ROUTER_BITS)


@inline
def fetch_expected(S: int, request: int) -> None:
    """Asks for what the prediction for a request of the trace is made of, if buckets make it."""
    row = trace_row(S, request)
    who, bucket = ldc32(row, L.T32_WHO), log2_of(ldc32(row, L.T32_PROMPT))
    prefetch(learner_at(S, who & L.ROUTER_MASK) + ((who >> L.ROUTER_BITS) * L.BUCKETS + bucket) * 16)


@inline
def expected(S: int, router: int, prompt: int, slo: int) -> int:
    """What a router's learner predicts for a request of this prompt and class."""
    learns = ldc(S, L.H_LEARNS)
    learner = learner_at(S, router)
    if ld(learner, L.LEARNER_ALL) == 0:
        return UNKNOWN_OUTPUT
    if learns == L.LEARN_PROMPT_REGRESSION:
        return fitted(learner, prompt)
    known = L.CLASSES if learns == L.LEARN_BUCKET else 0  # prompt buckets: one class, no class means
    row = slo if learns == L.LEARN_BUCKET else 0
    cell = 2 * (row * L.BUCKETS + log2_of(prompt))
    if ld(learner, cell) == 0:
        cell = L.LEARNER_CLASS + 2 * slo
        if known == 0 or ld(learner, cell) == 0:
            cell = L.LEARNER_ALL
    return mean_at(learner, cell)


@inline
def fitted(learner: int, prompt: int) -> int:
    """Least squares of the output length on the prompt length, from integer sums."""
    n, outputs = ld(learner, L.LEARNER_ALL), ld(learner, L.LEARNER_ALL + 1)
    prompts, squares = ld(learner, L.LEARNER_FIT), ld(learner, L.LEARNER_FIT + 1)
    products = ld(learner, L.LEARNER_FIT + 2)
    spread = n * squares - prompts * prompts
    if spread == 0:
        return mean_at(learner, L.LEARNER_ALL)
    slope = (n * products - prompts * outputs) / spread
    return max(1, int(np.floor((outputs - slope * prompts) / n + slope * prompt + 0.5)))


@inline
def learn(S: int, s: int) -> None:
    """The request in slot address s has finished: its true length is known."""
    learns = ldc(S, L.H_LEARNS)
    if learns != L.LEARN_NONE:
        place = ld32(s, L.S_PLACE)
        slo = (place & L.LOOSE_FLAG) >> 27
        learner = learner_at(S, router_of(place))
        prompt, output = ld32(s, L.S_PROMPT), ld32(s, L.S_OUTPUT)
        bump(learner, L.LEARNER_ALL, 1)
        bump(learner, L.LEARNER_ALL + 1, output)
        if learns == L.LEARN_PROMPT_REGRESSION:
            bump(learner, L.LEARNER_FIT, prompt)
            bump(learner, L.LEARNER_FIT + 1, prompt * prompt)
            bump(learner, L.LEARNER_FIT + 2, prompt * output)
        else:
            row = slo if learns == L.LEARN_BUCKET else 0
            cell = 2 * (row * L.BUCKETS + log2_of(prompt))
            bump(learner, cell, 1)
            bump(learner, cell + 1, output)
            bump(learner, L.LEARNER_CLASS + 2 * slo, 1)
            bump(learner, L.LEARNER_CLASS + 2 * slo + 1, output)
