"""Evolution strategies: they climb, repeat and resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.training.learning.strategies import (
    GradientParameters,
    Mode,
    Strategy,
    begin,
    centred_ranks,
    usual_candidates,
)

MODES: tuple[Mode, ...] = ("cma", "separable", "gradient")
TARGET = np.array([0.7, -0.4, 0.2, 0.0, 1.0])


def new(mode: Mode, seed: int = 0, n: int = 5, generations: int = 60, **parameters: Any) -> Strategy:
    gradient = GradientParameters(learning_rate=0.1, **parameters)
    return begin(mode, n, 12, 0.3, seed, generations=generations, gradient=gradient)


def climb(strategy: Strategy, generations: int) -> None:
    """Towards TARGET; only ranks are told."""
    for _ in range(generations):
        strategy.tell(centred_ranks(-np.square(strategy.ask() - TARGET[: len(strategy.mean)]).sum(axis=1)))


@pytest.mark.parametrize("mode", MODES)
def test_it_finds_the_best_point(mode: Mode) -> None:
    strategy = new(mode)
    assert (strategy.mean == 0).all()
    climb(strategy, 60)
    assert np.abs(strategy.mean - TARGET).max() < 0.1


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_asks_for_the_same_and_another_one_for_others(mode: Mode) -> None:
    one, same, other = new(mode), new(mode), new(mode, seed=1)
    for strategy in (one, same, other):
        climb(strategy, 3)
    assert one.ask().tobytes() == same.ask().tobytes() != other.ask().tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0, 1, 7])
def test_it_goes_on_from_its_state_to_the_same_bytes(mode: Mode, after: int) -> None:
    whole, broken, resumed = new(mode), new(mode), new(mode)
    climb(whole, after + 5)
    climb(broken, after)
    resumed.resume({name: array.copy() for name, array in broken.state().items()})
    climb(resumed, 5)
    assert resumed.mean.tobytes() == whole.mean.tobytes()
    assert resumed.ask().tobytes() == whole.ask().tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_numpys_global_generator_is_left_alone(mode: Mode) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    climb(new(mode), 2)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index,union-attr]


@pytest.mark.parametrize("mode", MODES)
def test_one_dimension_is_enough(mode: Mode) -> None:
    strategy = new(mode, n=1)
    climb(strategy, 40)
    assert strategy.ask().shape == (12, 1)
    assert abs(strategy.mean[0] - TARGET[0]) < 0.1


@pytest.mark.parametrize("mode", MODES)
def test_equal_values_teach_nothing_and_do_no_harm(mode: Mode) -> None:
    strategy = new(mode, n=3)
    for _ in range(5):
        strategy.ask()
        strategy.tell(np.zeros(12))
    assert np.isfinite(strategy.ask()).all()


def test_gradient_candidates_come_in_pairs() -> None:
    asked = new("gradient").ask()
    assert np.allclose(asked[:6] + asked[6:], 0)


def test_decay_shrinks_towards_the_start() -> None:
    free, held = new("gradient"), new("gradient", weight_decay=1.0)
    for strategy in (free, held):
        climb(strategy, 60)
    assert np.abs(held.mean).sum() < np.abs(free.mean).sum()


def test_the_learning_rate_falls_to_its_final_share() -> None:
    steps = []
    strategy = new("gradient", n=1, generations=50, final_rate=0.1, momentum=0.0, second_moment=0.0)
    for _ in range(50):
        before = strategy.mean.copy()
        strategy.tell(strategy.ask()[:, 0])
        steps.append(float(np.abs(strategy.mean - before)[0]))
    assert steps[0] == pytest.approx(0.1)
    assert steps[-1] == pytest.approx(0.1 * (1 - 0.9 * 49 / 50))


def test_thousands_of_weights_get_larger_populations_only_for_gradients() -> None:
    assert usual_candidates("gradient", 3_000) == 64
    assert usual_candidates("cma", 45) == 15


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_ranks_are_centred_keep_the_order_and_share_ties(values: list[int]) -> None:
    ranks = centred_ranks(np.array(values, np.float64))
    assert abs(ranks.sum()) < 1e-9
    assert ranks.min() >= -0.5 and ranks.max() <= 0.5
    for a, rank_a in zip(values, ranks, strict=True):
        for b, rank_b in zip(values, ranks, strict=True):
            assert (a < b) == (rank_a < rank_b)


