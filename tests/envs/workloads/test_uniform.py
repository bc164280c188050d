"""Compiled code draws the uniform numbers of NumPy's generators, to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from disaggroute.envs.streams import PURPOSES, stream
from disaggroute.envs.workloads.uniform import numbers, seed_words


@given(st.integers(0, 2**63 - 1), st.sampled_from(PURPOSES))
@example(0, "arrivals")
@example(2**32, "classes")
@example(2**200 + 7, "prompts")
def test_a_stream_has_the_numbers_that_numpy_draws(seed: int, purpose: str) -> None:
    found = np.empty(200)
    numbers(seed_words(seed, (purpose,))[0], found)
    assert found.tolist() == stream(seed, purpose).random(200).tolist()
