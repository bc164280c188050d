"""Inverting distribution functions gives what searching their tables gives, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.envs.workloads.inversion import Inverse
from disaggroute.envs.workloads.lengths import LengthLaw, Lengths, Part


def table_of(weights: list[float]) -> np.ndarray:
    table = np.cumsum(weights) / np.sum(weights)
    table[-1] = 1.0
    return table


TABLES = st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=70).filter(lambda w: sum(w) > 0).map(table_of)


@given(st.lists(TABLES, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_a_look_up_finds_what_a_search_finds(tables: list[np.ndarray], seed: int) -> None:
    rng = np.random.default_rng(seed)
    entries = np.concatenate(tables)
    near = [entries, np.nextafter(entries, 0), np.nextafter(entries, 1), np.array([0.0, np.nextafter(1.0, 0.0)])]
    values = np.concatenate([rng.random(50), *near])
    values = values[values < 1]
    which = rng.integers(0, len(tables), len(values)).astype(np.int8)
    found = Inverse.of(tables).places(values, which)
    expected = [np.searchsorted(tables[one], value, side="right") for one, value in zip(which, values, strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("sigma", [0.05, 1.3, 4.0])
def test_lengths_of_several_families_are_those_of_each_alone(sigma: float) -> None:
    laws = [LengthLaw(parts=(Part(median=100, sigma=sigma),), max=5000), LengthLaw(parts=(Part(median=9, sigma=2),))]
    rng = np.random.default_rng(1)
    uniform, family = rng.random(4000), rng.integers(0, 2, 4000).astype(np.int8)
    together = Lengths(laws).at(uniform, family)
    for index, law in enumerate(laws):
        alone = np.searchsorted(law.table(), uniform[family == index], side="right") + law.min
        assert (together[family == index] == alone).all()
        assert (law.lengths(uniform[family == index]) == alone).all()
