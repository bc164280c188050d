"""Rewards: what an agent is paid for a step, by name.

A step routes one request and ends at the next decision. What became of requests in between is in `Outcome`; only
requests that arrived in the measurement window count, so those of the warm start pay nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from . import catalog
from .trace import Trace

Number = Any
"""An int or a float, or an array of them."""

ENTRY_POINTS = "disaggroute.rewards"
"""Group of entry points, `name = "package.module:Class"`, by which other packages bring rewards."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step brought.

    Attributes:
        dt: simulated time that passed, s.
        missed: requests whose miss became certain (a target passed, or the request failed or was rejected).
        ended: requests that ended, whether in time or not.
        met: how many of `ended` met both targets.
        waited: time that requests spent in the cluster, summed over them, s.
        records: (N,) of dtype RECORD, by request; rows are complete for those that have ended.
        trace: the requests.
    """

    dt: float
    missed: npt.NDArray[np.int64]
    ended: npt.NDArray[np.int64]
    met: int
    waited: float
    records: npt.NDArray[Any]
    trace: Trace


class Reward(ABC):
    """What a step pays.

    A subclass has a `name` and implements `of`; it must not keep anything between steps, so that one object serves many
    environments.
    """

    name: ClassVar[str]
    """Name in the registry."""

    @abstractmethod
    def of(self, outcome: Outcome) -> float:
        """The reward of a step."""


class CountedReward(Reward):
    """A reward that the compiled step computes: a weighted sum of three counts."""

    weights: ClassVar[tuple[float, float, float]]
    """Of requests missed, of requests that ended in time, and of the time waited (s)."""

    def of(self, outcome: Outcome) -> float:
        """The weighted sum."""
        return float(self.counted(len(outcome.missed), outcome.met, outcome.waited))

    @classmethod
    def counted(cls, missed: Number, met: Number, waited: Number) -> Number:
        """The weighted sum of counts, or of arrays of them; `waited` in s."""
        of_missed, of_met, of_waited = cls.weights
        return of_missed * missed + of_met * met + of_waited * waited


class SloMiss(CountedReward):
    """−1 for each request whose miss has become certain: the return is −(missed requests)."""

    name = "slo-miss"
    weights = (-1.0, 0.0, 0.0)


class Goodput(CountedReward):
    """+1 for each request that ends with both targets met: the return is the number of these requests."""

    name = "goodput"
    weights = (0.0, 1.0, 0.0)


class Latency(CountedReward):
    """Minus the seconds that requests spent in the cluster since the last step: the return is −Σ E2E."""

    name = "latency"
    weights = (0.0, 0.0, -1.0)


R = TypeVar("R", bound=type[Reward])

_classes: dict[str, type[Reward]] = {reward.name: reward for reward in (SloMiss, Goodput, Latency)}


def register(reward: R) -> R:
    """Class decorator: adds a reward under its `name`, for this process.

    Raises:
        ValueError: it is no complete class of a reward, it has no name, or another class has its name.
    """
    _check(reward)
    name = getattr(reward, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{reward.__qualname__}: name is {name!r}; it must be text")
    holder = _classes.get(name, reward)
    if (holder.__module__, holder.__qualname__) != (reward.__module__, reward.__qualname__):
        raise ValueError(f"{reward.__qualname__}: the name {name!r} is taken; choose another one")
    _classes[name] = reward
    return reward


def names() -> tuple[str, ...]:
    """Names of the rewards, sorted."""
    return tuple(sorted(_classes.keys() | _entry_points().keys()))


def make(name: str) -> Reward:
    """The reward of this name.

    Raises:
        ValueError: an unknown name (the message gives the nearest ones), or an entry point that brings no reward.
    """
    if name not in _classes and name in _entry_points():
        point = _entry_points()[name]
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"reward {name!r} cannot be loaded from {point.value} ({error})") from error
        if not (isinstance(found, type) and issubclass(found, Reward) and found.name == name):
            raise ValueError(f"reward {name!r}: {point.value} is no Reward class with that name")
        _check(found)
        _classes[name] = found
    if name not in _classes:
        raise ValueError(catalog.unknown("reward", name, names()))
    return _classes[name]()


def _check(reward: object) -> None:
    if not (isinstance(reward, type) and issubclass(reward, Reward)):
        raise ValueError(f"{getattr(reward, '__qualname__', repr(reward))} is no class that extends Reward")
    for method in sorted(reward.__abstractmethods__):
        raise ValueError(f"{reward.__qualname__}: {method} is missing; a reward must have it")


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
