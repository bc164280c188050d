"""The optimiser: finds the best place, led by its seed and by the order of values alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from disaggroute.training.optimiser import Optimiser, usual_population

Floats = npt.NDArray[np.float64]


def led(value: Callable[[Floats], float], start: Floats, generations: int, seed: int = 0) -> Optimiser:
    """An optimiser after some generations of values."""
    optimiser = Optimiser(start, usual_population(len(start)), (seed,))
    for _ in range(generations):
        optimiser.tell(np.array([value(places) for places in optimiser.ask()]))
    return optimiser


def near(goal: float) -> Callable[[Floats], float]:
    return lambda places: -float(((places - goal) ** 2).sum())


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("goal", [0.0, 0.3, 1.0])
def test_it_finds_the_best_place_inside_and_at_the_edge(n: int, goal: float) -> None:
    assert led(near(goal), np.full(n, 0.6), 80).means[-1] == pytest.approx(np.full(n, goal), abs=0.01)


def test_it_may_start_at_the_edge() -> None:
    assert led(near(0.5), np.array([0.0, 1.0, 0.0]), 80).means[-1] == pytest.approx(np.full(3, 0.5), abs=0.01)


@pytest.mark.parametrize("n", [1, 3])
def test_candidates_lie_in_the_unit_cube(n: int) -> None:
    optimiser = Optimiser(np.full(n, 0.9), 20, (0,))
    for _ in range(10):
        asked = optimiser.ask()
        assert asked.shape == (20, n) and (asked >= 0).all() and (asked <= 1).all()
        optimiser.tell(asked.sum(axis=1))


def test_only_the_order_of_the_values_counts() -> None:
    one = led(near(0.3), np.full(3, 0.5), 10)
    other = led(lambda places: 7 + 100 * np.exp(near(0.3)(places)), np.full(3, 0.5), 10)
    assert (one.ask() == other.ask()).all()


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    np.random.seed(1)
    first = led(near(0.3), np.full(3, 0.5), 5).ask()
    assert np.random.random() == np.random.RandomState(1).random()
    assert (led(near(0.3), np.full(3, 0.5), 5).ask() == first).all()
    assert (led(near(0.3), np.full(3, 0.5), 5, seed=1).ask() != first).any()


def test_values_that_are_all_alike_do_not_stop_it() -> None:
    means = led(lambda _: 0.5, np.full(2, 0.5), 400).means
    assert all(((mean >= 0) & (mean <= 1)).all() for mean in means)


def test_after_convergence_it_begins_anew_and_remembers_where_it_was() -> None:
    means = led(near(0.3), np.full(2, 0.5), 500).means
    assert len(means) > 1
    assert means[0] == pytest.approx([0.3, 0.3], abs=1e-6)


def test_a_broken_library_is_named_with_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cma.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cma", raising=False)
    with pytest.raises(ValueError, match=r"the library cma cannot be loaded \(ZeroDivisionError: .*; install it anew"):
        Optimiser(np.full(2, 0.5), 6, (0,))


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(ValueError, match=r"the library cma is not installed.*pip install 'disaggroute\[train\]'"):
        Optimiser(np.full(2, 0.5), 6, (0,))
