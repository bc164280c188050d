"""Evolution strategies: distributions over weights that are asked for candidates and told how these did.

All draws come from the seed and the generation. A strategy's state is a mapping of arrays, from which it goes on to
the same candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ..optimiser import begin_strategy, usual_population

Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.generic]]

Mode = Literal["cma", "separable", "gradient"]

MOST_FULL = 200
"""Dimensions of a full covariance matrix; above, learning it takes more generations than there are."""


class Strategy(Protocol):
    """A distribution over (n,) points; its first mean is 0 and its steps are of order 1 (see `Space.scale`)."""

    @property
    def mean(self) -> Floats:
        """(n,) of the present distribution."""

    @property
    def spread(self) -> float:
        """Its step size."""

    def ask(self) -> Floats:
        """(population, n) candidates."""

    def tell(self, values: Floats) -> None:
        """Takes (population,) values of what was asked for; larger is better."""

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """All that `resume` needs."""

    def resume(self, state: Arrays) -> None:
        """Goes on from a state of the same strategy."""


class Covariance:
    """CMA-ES (Hansen, arXiv 1604.00772), with a full covariance matrix or a diagonal one (Ros and Hansen 2008).

    Its state is what it was told: it is led to the same point again by telling it the same, which takes milliseconds.

    Args:
        n: dimensions.
        population: candidates in a generation.
        step: first standard deviation.
        seed: of all draws.
        diagonal: whether only the diagonal of the covariance matrix is learned.
    """

    def __init__(self, n: int, population: int, step: float, seed: int, *, diagonal: bool) -> None:
        self._n, self._population, self._step, self._seed, self._diagonal = n, population, step, seed, diagonal
        self._begin()

    def _begin(self) -> None:
        self._told: list[Floats] = []
        rng = np.random.default_rng((self._seed, self._n))
        # The library needs two dimensions: a lone one is given a companion that nothing depends on.
        start = np.zeros(max(self._n, 2))
        self._strategy = begin_strategy(start, self._step, self._population, rng, CMA_diagonal=self._diagonal)

    @property
    def mean(self) -> Floats:
        """(n,) of the present distribution."""
        mean: Floats = np.array(self._strategy.mean)[: self._n]
        return mean

    @property
    def spread(self) -> float:
        """Geometric mean of the standard deviations."""
        return float(np.exp(np.log(np.array(self._strategy.stds)[: self._n]).mean()))

    def ask(self) -> Floats:
        """(population, n) candidates."""
        self._asked = self._strategy.ask()
        return np.array(self._asked)[:, : self._n]

    def tell(self, values: Floats) -> None:
        """Takes their values; larger is better."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the library, on flat values and the like: ranks are often tied.
            self._strategy.tell(self._asked, [-value for value in values])
        self._told.append(np.array(values, np.float64))

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What it was told, (generations, population)."""
        return {"told": np.array(self._told).reshape(-1, self._population)}

    def resume(self, state: Arrays) -> None:
        """Is told the same again."""
        self._begin()
        for values in np.asarray(state["told"], np.float64).reshape(-1, self._population):
            self.ask()
            self.tell(values)


class GradientParameters(BaseModel):
    """Of the strategy for thousands of weights.

    Attributes:
        learning_rate: of Adam, in steps of `Space.scale`; it falls linearly to `final_rate` times itself.
        final_rate: see there.
        momentum: Adam's first decay.
        second_moment: Adam's second decay.
        weight_decay: share by which weights shrink towards the start in a generation, times the learning rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(0.03, gt=0, le=100)
    final_rate: float = Field(0.1, gt=0, le=1)
    momentum: float = Field(0.9, ge=0, lt=1)
    second_moment: float = Field(0.99, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=10)


class Gradient:
    """Estimates the gradient of the mean's value from antithetic pairs and follows it with Adam.

    The distribution is normal with one fixed step size. Candidates come in pairs, mean ± step · ε; with u the values,
    centred by the caller, the estimate is Σ over pairs (u₊ − u₋) · ε / (2 · pairs · step). Source: Salimans, Ho, Chen,
    Sidor and Sutskever, "Evolution strategies as a scalable alternative to reinforcement learning", arXiv 1703.03864;
    Adam by Kingma and Ba, arXiv 1412.6980.

    Args:
        n: dimensions.
        population: candidates in a generation; even.
        step: standard deviation.
        seed: of all draws.
        generations: in all, for the learning rate.
        parameters: of the steps of the mean.
    """

    def __init__(
        self, n: int, population: int, step: float, seed: int, *, generations: int, parameters: GradientParameters
    ) -> None:
        self.mean: Floats = np.zeros(n)
        self.spread = step
        self._first, self._second = np.zeros(n), np.zeros(n)
        self._generation, self._generations = 0, generations
        self._pairs, self._seed, self._parameters = population // 2, seed, parameters

    def ask(self) -> Floats:
        """(population, n) candidates: the first of all pairs, then the second ones."""
        rng = np.random.default_rng((self._seed, self._generation))
        self._drawn = rng.standard_normal((self._pairs, len(self.mean)))
        steps = self.spread * self._drawn
        return np.concatenate([self.mean + steps, self.mean - steps])

    def tell(self, values: Floats) -> None:
        """Takes their values; larger is better."""
        p, k = self._parameters, self._generation + 1
        halves = (values[: self._pairs] - values[self._pairs :]) / 2
        gradient = halves @ self._drawn / (self._pairs * self.spread)
        self._first = p.momentum * self._first + (1 - p.momentum) * gradient
        self._second = p.second_moment * self._second + (1 - p.second_moment) * gradient**2
        size = np.sqrt(self._second / (1 - p.second_moment**k)) + 1e-12
        rate = p.learning_rate * (1 - (1 - p.final_rate) * min(self._generation / max(self._generations, 1), 1.0))
        self.mean = self.mean + rate * (self._first / (1 - p.momentum**k) / size - p.weight_decay * self.mean)
        self._generation = k

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """The mean, Adam's moments, and the generations so far."""
        return {
            "mean": self.mean,
            "first": self._first,
            "second": self._second,
            "generation": np.array(self._generation),
        }

    def resume(self, state: Arrays) -> None:
        """Takes them back."""
        self.mean, self._first, self._second = (
            np.array(state[name], np.float64) for name in ("mean", "first", "second")
        )
        self._generation = int(np.asarray(state["generation"]))


def usual_candidates(mode: Mode, n: int) -> int:
    """Candidates in a generation over n dimensions unless told: more for gradients, whose estimate is noisier."""
    return usual_population(n) if mode != "gradient" else 64


def begin(
    mode: Mode,
    n: int,
    population: int,
    step: float,
    seed: int,
    *,
    generations: int,
    gradient: GradientParameters,
) -> Strategy:
    """A strategy at its beginning.

    Args:
        mode: which.
        n: dimensions.
        population: candidates in a generation.
        step: first standard deviation.
        seed: of all draws.
        generations: in all.
        gradient: parameters of that mode.

    Raises:
        ValueError: the library `cma` is missing.
    """
    if mode == "gradient":
        return Gradient(n, population, step, seed, generations=generations, parameters=gradient)
    return Covariance(n, population, step, seed, diagonal=mode == "separable")


def centred_ranks(values: Floats) -> Floats:
    """Ranks between −0.5 and 0.5; equal values share the mean of their ranks.

    Args:
        values: (k,) numbers, larger is better.
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    first = np.cumsum(sizes) - sizes
    ranks = (first + (sizes - 1) / 2)[group]
    most = len(values) - 1
    return (ranks - most / 2) / max(most, 1)
