from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs.streams import PURPOSES, stream


def test_streams_are_the_children_that_spawn_gives() -> None:
    children = np.random.SeedSequence(5).spawn(len(PURPOSES))
    for purpose, child in zip(PURPOSES, children, strict=True):
        assert stream(5, purpose).random() == np.random.default_rng(child).random()  # type: ignore[arg-type]


def test_streams_of_one_seed_differ() -> None:
    assert len({stream(0, purpose).random() for purpose in PURPOSES}) == len(PURPOSES)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1"])
def test_a_seed_that_is_no_natural_number_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed is .*; it must be an integer of at least 0"):
        stream(seed, "arrivals")
