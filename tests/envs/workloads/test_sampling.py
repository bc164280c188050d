"""Requests are drawn from the streams of a seed by inverting distribution functions, each request by itself."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.envs import workloads
from disaggroute.envs.streams import Purpose, stream
from disaggroute.envs.workloads.sampling import Draw

NAMES = ("mixed-bursty-a40", "chat")


def draw_of(name: str) -> Draw:
    return workloads.make(name)._draw


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_those_of_numpy_draws_and_searches(name: str) -> None:
    workload, seed, n = workloads.make(name), 3, 4_000
    family, prompt, output, slo = draw_of(name).requests(n, seed)
    laws, shares = list(workload.families.values()), np.cumsum(workload.shares)
    shares[-1] = 1.0

    def uniform(purpose: Purpose) -> np.ndarray:
        return stream(seed, purpose).random(n)

    assert family.tolist() == np.searchsorted(shares, uniform("families"), side="right").tolist()
    prompts, outputs = uniform("prompts"), uniform("outputs")
    for one, law in enumerate(laws):
        own = family == one
        for lengths, table, numbers in ((prompt, law.prompt, prompts), (output, law.output, outputs)):
            assert lengths[own].tolist() == table.lengths(numbers[own]).tolist()
    tight = np.array([law.tight_share for law in laws])
    assert slo.tolist() == (uniform("classes") >= tight[family]).astype(int).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_more_requests_begin_with_the_same_ones(name: str) -> None:
    few, many = (draw_of(name).requests(n, 5) for n in (10, 500))
    for a, b in zip(few, many, strict=True):
        assert a.tolist() == b[:10].tolist()
