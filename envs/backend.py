"""Backends: what runs a policy on a prepared trace, the simulator or a live cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from . import catalog

if TYPE_CHECKING:
    from .admission import Router
    from .scenario import Scenario
    from .setting import Prepared, Setting

Say = Callable[[str], None]
"""Told a line for people."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run left.

    Attributes:
        records: (N,) one row per request of the trace, dtype RECORD.
        decisions: (n,) what the router saw of each chosen pair, dtype DECISION.
        columns: further columns of the table of records, by name, (N,) each; those of a backend alone.
    """

    records: npt.NDArray[Any]
    decisions: npt.NDArray[Any]
    columns: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Runs policies in a setting.

    Attributes:
        name: as on the command line.
        setting: the scenario on this backend's cluster.
        serial: whether runs must follow each other in this process: there is one cluster.
        sources: folders and files of the package, beside those that decide every result, whose code decides its own.
        options: words of the command line that set it up.
    """

    name: str
    setting: Setting
    serial: bool
    sources: tuple[str, ...]
    options: tuple[str, ...]

    def at_rate(self, rate: float) -> Backend:
        """The same at another rate, requests per second.

        Raises:
            ValueError: the rate is not a finite number above 0.
        """

    def configuration(self) -> dict[str, Any]:
        """What decides its runs, beside the setting; JSON-able."""

    def begin(self, say: Say) -> None:
        """Called once before the first run that is to be done.

        Raises:
            RuntimeError: what runs would be worth nothing.
        """

    def run(
        self, prepared: Prepared, policy: str, seed: int, *, log_decisions: bool, place: Path, say: Say
    ) -> Outcome:
        """Runs a policy on a prepared trace.

        Args:
            prepared: the trace.
            policy: text of the policy, as on the command line.
            seed: for what is random in policy and predictor.
            log_decisions: keep what the router saw of the chosen pairs.
            place: folder that is this run's own, for what must outlive a crash; need not exist.
            say: told what people should know of this run.
        """


class SimulatorBackend:
    """The simulator.

    Args:
        setting: the scenario on its simulated cluster.
        parse: makes a policy of its text.
    """

    name = "simulator"
    serial = False
    sources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __init__(self, setting: Setting, parse: Callable[[str], Router]) -> None:
        self.setting, self._parse = setting, parse

    def at_rate(self, rate: float) -> SimulatorBackend:
        """The same at another rate, requests per second."""
        setting = self.setting
        return SimulatorBackend(replace(setting, scenario=setting.scenario.at_rate(rate)), self._parse)

    def configuration(self) -> dict[str, Any]:
        """Nothing: the setting says all."""
        return {}

    def begin(self, say: Say) -> None:
        """Nothing."""

    def run(
        self, prepared: Prepared, policy: str, seed: int, *, log_decisions: bool, place: Path, say: Say
    ) -> Outcome:
        """Simulates; `place` stays unused: a run that was interrupted is done again in no time."""
        result = self.setting.simulate(prepared, self._parse(policy), seed, log_decisions=log_decisions)
        return Outcome(result.records, result.decisions)


_factories: dict[str, Callable[..., Backend]] = {}


def register(name: str, factory: Callable[..., Backend]) -> None:
    """Adds a backend under a name: a function of a scenario and of options."""
    _factories[name] = factory


def names() -> tuple[str, ...]:
    """Names that `make` knows, and the simulator."""
    return tuple(sorted({SimulatorBackend.name, *_factories}))


def make(name: str, scenario: Scenario, **options: Any) -> Backend:
    """The registered backend of this name.

    Args:
        name: one of `names`, but the simulator's.
        scenario: what is to be run.
        options: the backend's own.

    Raises:
        ValueError: an unknown name, or what the factory refuses.
    """
    if name not in _factories:
        raise ValueError(catalog.unknown("backend", name, names()))
    return _factories[name](scenario, **options)
