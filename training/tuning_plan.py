"""A tuning plan: which policy is tuned for which scenario, with what effort, and on which seeds."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs import catalog
from ..envs.scenario import Scenario
from ..envs.setting import Setting
from ..policies import registry
from ..policies.policy import Policy
from ..policies.search_space import Dimension, params_at
from .description import exact, only_python, scenario_words
from .evaluation import check_pools
from .optimiser import library, usual_population
from .seeds import TUNING, VALIDATION, refuse_held_out, seeds_from

FEWEST = 3
"""Fewest restarts, and fewest traces of an evaluation: below, luck does not show."""

SMALLEST_POPULATION = 4

TUNING_SEEDS = 16
VALIDATION_SEEDS = 20
VALIDATION_DURATION_S = 1_800.0
"""Validation is longer than tuning, since a collapse may take its time."""


@dataclass(frozen=True)
class Plan:
    """What is to be tuned, and how.

    Attributes:
        policy: its text; parameters that are not in its search space stay as given.
        scenario: what it is tuned for; its duration is that of a tuning trace. Of a trace file, the first half is
            tuned on unless a duration is given, and the rest validates.
        evaluations: candidates that each restart may try, in whole generations.
        tuning_seeds: traces of an evaluation; None: 16, or the one of a trace file.
        first_seed: of the first generation's traces; the others follow, around the end of the tuning range.
        restarts: independent runs of the optimiser, ≥ 3.
        population: candidates in a generation; None: by the number of dimensions.
        seed: of the optimisers.
        validation_seeds: traces on which the choice is made; None: 20, or the one of a trace file.
        validation_duration_s: their measurement window; None: 1,800 s, or the rest of a trace file.
    """

    policy: str
    scenario: Scenario
    evaluations: int = 200
    tuning_seeds: int | None = None
    first_seed: int = 0
    restarts: int = 3
    population: int | None = None
    seed: int = 0
    validation_seeds: int | None = None
    validation_duration_s: float | None = None

    def check(self) -> None:
        """Checks what can be checked before a rate is known.

        Raises:
            ValueError: an unknown name, a value out of range, seeds that may not be used, a policy without anything to
                tune, or a missing library.
        """
        if not self.space:
            able = [name for name in registry.names() if _can_be_tuned(name)]
            raise ValueError(f"policy is {self.policy}, which has nothing to tune; these have: {', '.join(able)}")
        library()
        if self.restarts < FEWEST:
            raise ValueError(f"restarts is {self.restarts}; it must be at least {FEWEST}, or luck does not show")
        if self.population is not None and self.population < SMALLEST_POPULATION:
            raise ValueError(f"population is {self.population}; it must be at least {SMALLEST_POPULATION}")
        if self.evaluations < self.candidates:
            raise ValueError(
                f"evaluations is {self.evaluations}; it must be at least {self.candidates}, one generation"
            )
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be at least 0")
        if self.traces < FEWEST and not self.single:
            raise ValueError(f"tuning seeds is {self.traces}; it must be at least {FEWEST}, or luck does not show")
        if self.validation_seeds is not None and self.validation_seeds < 1:
            raise ValueError(f"validation seeds is {self.validation_seeds}; it must be at least 1")
        refuse_held_out((self.first_seed,), "tune")
        self.setting.check_seeds(seeds_from(self.first_seed, self.traces, within=TUNING))
        self.setting.check_seeds(self.validation)
        if self.validation_duration_s is not None and not 0 < self.validation_duration_s < math.inf:
            raise ValueError(f"validation duration is {self.validation_duration_s:g} s; it must be above 0")
        if self.single:
            self._check_halves()
        check_pools(self.default, Setting.of(self.validation_scenario))

    def _check_halves(self) -> None:
        whole, used = self._whole_s, self.tuning_scenario.duration_s or 0.0
        name = self.setting.traffic.name
        if used >= whole:
            raise ValueError(
                f"duration is {used:g} s, but {name} has {whole:.6g} s after the warm-up; tuning needs a part of "
                "them, and validation the rest"
            )
        if (self.validation_duration_s or 0.0) > whole - used:
            raise ValueError(
                f"validation duration is {self.validation_duration_s:g} s, but {name} has {whole - used:.6g} s after "
                "the part that is tuned on"
            )

    @property
    def setting(self) -> Setting:
        """The scenario with its names looked up."""
        return Setting.of(self.scenario)

    @property
    def single(self) -> bool:
        """Whether there is only one trace."""
        return self.setting.traffic.single

    @property
    def tuning_scenario(self) -> Scenario:
        """What an evaluation runs."""
        if not self.single or self.scenario.duration_s is not None:
            return self.scenario
        return self._with(duration_s=self._whole_s / 2)

    @property
    def validation_scenario(self) -> Scenario:
        """What validation runs: longer windows, or the part of a trace file that was not tuned on."""
        if not self.single:
            return self._with(duration_s=self.validation_duration_s or VALIDATION_DURATION_S)
        used = self.tuning_scenario.duration_s or 0.0
        rest = self.validation_duration_s or self._whole_s - used
        return self._with(warmup_s=self.scenario.warmup_s + used, duration_s=rest)

    @property
    def _whole_s(self) -> float:
        """Seconds of a trace file after the warm-up."""
        return self.setting.traffic.whole_s(self.scenario.rate, self.scenario.warmup_s) or 0.0

    def _with(self, **changes: Any) -> Scenario:
        return Scenario.make(**(self.scenario.model_dump() | changes))

    @property
    def traces(self) -> int:
        """Traces of an evaluation."""
        return self.tuning_seeds if self.tuning_seeds is not None else 1 if self.single else TUNING_SEEDS

    @property
    def validation(self) -> range:
        """Seeds of the validation traces."""
        usual = 1 if self.single else VALIDATION_SEEDS
        return VALIDATION.take(usual if self.validation_seeds is None else self.validation_seeds)

    def seeds(self, generation: int) -> tuple[int, ...]:
        """Traces of a generation: the same for all its candidates, others in each."""
        size = TUNING.last - TUNING.first + 1
        first = self.first_seed - TUNING.first + generation * self.traces
        return tuple(TUNING.first + (first + k) % size for k in range(self.traces))

    @cached_property
    def default(self) -> Policy:
        """The policy as it was named."""
        return registry.parse(self.policy)

    @cached_property
    def space(self) -> tuple[Dimension, ...]:
        """The search space, for the pools of the cluster."""
        pools = self.setting.pools
        return type(self.default).search_space(pools.get("prefill", 0), pools.get("decode") or pools["mixed"])

    @property
    def candidates(self) -> int:
        """Candidates in a generation of one restart."""
        return usual_population(len(self.space)) if self.population is None else self.population

    @property
    def generations(self) -> int:
        """Generations of each restart."""
        return self.evaluations // self.candidates

    def start(self) -> npt.NDArray[np.float64]:
        """(n,) places at which the search begins: the policy as it was named, where that lies in the space."""
        return np.array([d.place(_start(self.default.params, d)) for d in self.space])

    def params(self, places: npt.ArrayLike) -> dict[str, Any]:
        """All parameters of the policy at (n,) places of the search space."""
        return catalog.merge(self.default.params, params_at(self.space, np.asarray(places).tolist()))

    def command(self) -> str:
        """The command that does the same; empty for what only Python can ask for."""
        if only_python(self.scenario):
            return ""
        words = ["disaggroute", "tune", self.policy, self.scenario.workload, *scenario_words(self.scenario)]
        for name in ("evaluations", "tuning_seeds", "first_seed", "restarts", "population", "seed", "validation_seeds"):
            if getattr(self, name) != getattr(Plan, name):
                words += [f"--{name.replace('_', '-')}", exact(getattr(self, name))]
        if self.validation_duration_s is not None:
            words += ["--validation-duration", exact(self.validation_duration_s)]
        return shlex.join(words)

    def at_rate_of(self, scenario: Scenario) -> Plan:
        """The same plan with a scenario whose rate is known."""
        return replace(self, scenario=scenario)


def _can_be_tuned(name: str) -> bool:
    try:
        return bool(registry.policy_class(name).search_space(2, 4))
    except Exception:  # of another package, and broken
        return False


def value_at(params: Mapping[str, Any], dimension: Dimension) -> float | None:
    """What the parameters of a policy say in a dimension; None where that is no number."""
    value = params.get(dimension.name)
    if isinstance(dimension.key, str):
        value = value.get(dimension.key) if isinstance(value, Mapping) else None
    elif dimension.key is not None:
        value = value[dimension.key] if isinstance(value, list) and dimension.key < len(value) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _start(params: Mapping[str, Any], dimension: Dimension) -> float:
    """A policy's value in a dimension; the dimension's start where it has none, or one out of bounds."""
    value = value_at(params, dimension)
    return dimension.start if value is None or not dimension.low <= value <= dimension.high else value
