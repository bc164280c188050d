"""Compiled code draws the exponential numbers of NumPy's generators, to the last bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.envs.simulator.compile import entry
from disaggroute.envs.streams import stream
from disaggroute.envs.workloads.exponential import exponential, tables
from disaggroute.envs.workloads.uniform import Words, begin, seed_words

Floats = npt.NDArray[np.float64]


@entry
def draw(words: Words, below: npt.NDArray[np.uint64], width: Floats, density: Floats, found: Floats) -> None:
    state = begin(words)
    for k in range(len(found)):
        state, found[k] = exponential(state, below, width, density)


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1])
def test_a_stream_has_the_exponential_numbers_that_numpy_draws(seed: int) -> None:
    found = np.empty(300_000)  # some hundred of them from the tail
    draw(seed_words(seed, ("arrivals",))[0], *tables(), found)
    expected = stream(seed, "arrivals").standard_exponential(len(found))
    assert expected.max() > 7.7
    assert (found == expected).all()
