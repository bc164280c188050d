"""An optimiser over the unit cube: CMA-ES, seeded, told and asked from outside."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs.error_text import error_text

Floats = npt.NDArray[np.float64]

FIRST_STEP = 0.25
"""Standard deviation of the first distribution, in widths of the cube."""


class Optimiser:
    """Covariance matrix adaptation evolution strategy (Hansen, arXiv 1604.00772), in the library `cma`.

    It looks at the order of the values alone, so that each generation may be judged on traces of its own. All
    draws come from its seed, so it can be led to the same state again by telling it the same values. A
    distribution that has converged or degenerated (by the library's criteria on places) makes place for a new one
    around a random point. CMA-ES needs two dimensions: a lone one is given a companion that nothing depends on.
    """

    def __init__(self, start: Floats, population: int, seed: tuple[int, ...]) -> None:
        """Starts around a point.

        Args:
            start: (n,) places between 0 and 1.
            population: candidates in a generation, ≥ 4; `usual_population(n)` unless there are reasons.
            seed: of all draws.

        Raises:
            ValueError: the library is missing; the message says how to install it.
        """
        self._n = len(start)
        self._rng = np.random.default_rng(seed)
        self.population = population
        self._ended: list[Floats] = []
        companion = np.full(max(2 - self._n, 0), 0.5)
        self._strategy = self._begin(np.concatenate([start, companion]))

    def ask(self) -> Floats:
        """(population, n) places to evaluate."""
        self._asked = self._strategy.ask()
        return np.array(self._asked)[:, : self._n]

    def tell(self, values: Floats) -> None:
        """Takes the values of what was asked for.

        Args:
            values: (population,), larger is better.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the library, on flat values and the like: they are dealt with.
            self._strategy.tell(self._asked, [-value for value in values])
            converged = self._strategy.stop()
        if converged:
            self._ended.append(self._mean())
            self._strategy = self._begin(self._rng.random(len(self._strategy.mean)))

    @property
    def means(self) -> list[Floats]:
        """(n,) means of its distributions, the present one last."""
        return [*self._ended, self._mean()]

    def _begin(self, start: Floats) -> Any:
        return begin_strategy(start, FIRST_STEP, self.population, self._rng, bounds=[0, 1])

    def _mean(self) -> Floats:
        mean: Floats = np.array(self._strategy.result.xfavorite)[: self._n]
        return mean


def begin_strategy(
    start: Floats, step: float, population: int, rng: np.random.Generator, **options: Any
) -> Any:
    """A strategy of the library, for values that are comparable within a generation alone.

    Args:
        start: (n,) mean of the first distribution, n ≥ 2.
        step: its standard deviation.
        population: candidates in a generation.
        rng: makes all draws.
        **options: others of the library.

    Raises:
        ValueError: the library is missing; the message says how to install it.
    """
    cma = library()
    settings: dict[str, Any] = {
        "popsize": population,
        # Values of other traces are other values: that they are alike or no better says nothing.
        **{"tolfun": 0, "tolfunhist": 0, "tolstagnation": np.inf, "tolflatfitness": np.inf, "maxiter": np.inf},
        # NaN: the library leaves NumPy's global generator alone.
        "seed": np.nan,
        "randn": lambda *shape: rng.standard_normal(shape),
        "verbose": -9,
        "verb_log": 0,
        "signals_filename": None,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cma.CMAEvolutionStrategy(start, step, settings | options)


def usual_population(n: int) -> int:
    """Candidates in a generation over n dimensions, as the method's author advises: 4 + ⌊3·ln n⌋."""
    return 4 + int(3 * np.log(max(n, 2)))


def library() -> Any:
    """The library `cma`.

    Raises:
        ValueError: it is missing.
    """
    try:
        import cma
    except ImportError:
        raise ValueError(
            "the library cma is not installed, and tuning needs it; `pip install 'disaggroute[train]'`, or cma alone"
        ) from None
    except Exception as error:  # Whatever goes wrong in it when it is imported.
        raise ValueError(f"the library cma cannot be loaded ({error_text(error)}); install it anew") from error
    return cma
