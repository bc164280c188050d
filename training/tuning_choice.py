"""The choice after a search: the default and the best that was found, compared on validation seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..envs.setting import Setting
from ..policies import registry
from ..policies.policy import Policy
from ..policies.policy_file import PolicyFile
from .comparison import Comparison, compare
from .evaluation import OnRun, evaluate
from .executors.executor import Executor
from .optimiser import library
from .runs import write_atomically
from .statistics import Estimate
from .tuning import Search

BEST = 3
"""Candidates of each restart that are validated, beside the means of its distributions."""

DEFAULT, TUNED = "default", "tuned"
"""How the two are called in tables."""


@dataclass(frozen=True)
class Finalist:
    """A policy that is validated.

    Attributes:
        label: its text.
        policy: the policy.
        source: where the search found it, in words.
    """

    label: str
    policy: Policy
    source: str


@dataclass(frozen=True)
class Choice:
    """What validation said.

    Attributes:
        chosen: the best on the validation seeds; the default where nothing is better.
        default: the policy as it was named.
        comparison: the default and the chosen one, paired by trace.
        validated: how many were compared.
        file: the policy file.
    """

    chosen: Finalist
    default: Finalist
    comparison: Comparison
    validated: int
    file: Path

    @property
    def improved(self) -> bool:
        """Whether the chosen one is another than the default."""
        return self.chosen is not self.default


def choose(
    search: Search,
    *,
    workers: int | Executor | None = None,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Choice:
    """Evaluates the finalists on the validation seeds and stores the best one's parameters as `tuned.yaml`.

    The finalists are the default, the means of each restart's distributions, and its `BEST` candidates with the
    largest gains over the default. The best mean goodput wins, the earlier one on a tie. Runs are stored in
    `validation/` and not repeated.

    Args:
        search: a finished search.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        OSError: the folder cannot be written.
    """
    plan = search.plan
    entrants: dict[str, Finalist] = {}
    for finalist in _finalists(search):
        entrants.setdefault(finalist.policy.hash, finalist)
    finalists = list(entrants.values())
    evaluation = evaluate(
        plan.validation_scenario,
        [finalist.label for finalist in finalists],
        plan.validation,
        out=search.folder.path / "validation",
        records="none",
        workers=workers,
        on_run=on_run,
        say=say,
    )
    default = finalists[0]
    comparison = compare(evaluation, default.label)
    goodputs = [line.goodput.mean for line in comparison.lines]
    best = goodputs.index(max(goodputs))
    lines = [replace(comparison.lines[0], label=DEFAULT)]
    if best:
        lines.append(replace(comparison.lines[best], label=TUNED))
    comparison = replace(comparison, lines=tuple(lines), baseline=DEFAULT)
    file = search.folder.path / "tuned.yaml"
    provenance = _provenance(search, finalists[best], comparison, len(finalists))
    write_atomically(file, PolicyFile.of(finalists[best].policy, provenance).yaml().encode())
    return Choice(finalists[best], default, comparison, len(finalists), file)


def _finalists(search: Search) -> Iterator[Finalist]:
    """The default, then restart by restart; some may be the same policy."""
    plan = search.plan
    name = plan.default.name

    def finalist(params: dict[str, Any], source: str) -> Finalist:
        policy = registry.make(name, **params)
        return Finalist(str(policy), policy, source)

    yield finalist(plan.default.params, "the default")
    for restart, means in enumerate(search.means):
        for k, mean in enumerate(means):  # A distribution that converged made place for another one.
            which = f"distribution {k + 1} of {len(means)}" if len(means) > 1 else "last distribution"
            yield finalist(plan.params(mean), f"restart {restart + 1}, mean of its {which}")
        tried = [candidate for candidate in search.tried if candidate.restart == restart]
        for candidate in sorted(tried, key=lambda c: (-c.gain, c.number))[:BEST]:
            yield finalist(plan.params(candidate.places), f"restart {restart + 1}, evaluation {candidate.number}")


def _provenance(search: Search, chosen: Finalist, comparison: Comparison, validated: int) -> dict[str, Any]:
    plan = search.plan
    setting = Setting.of(plan.tuning_scenario)
    longer = Setting.of(plan.validation_scenario)
    rate = plan.scenario.rate or setting.traffic.own_rate
    first, last = comparison.lines[0], comparison.lines[-1]
    scenario = f"{setting.traffic.name} on {setting.cluster.name} at {rate:.6g} requests/s, "
    scenario += f"predictor {plan.scenario.predictor}"
    if plan.scenario.observability != "router":
        scenario += f", {plan.scenario.observability} observability"
    return {
        "command": plan.command(),
        "version": __version__,
        "scenario": scenario,
        "search": {
            "optimiser": f"CMA-ES, cma {library().__version__}",
            "restarts": plan.restarts,
            "evaluations": plan.generations * plan.candidates,
            "population": plan.candidates,
            "traces": plan.traces,
            "duration_s": setting.duration_s,
            "seeds": f"{search.seeds[0]} to {search.seeds[-1]}",
        },
        "validation": {
            "traces": len(plan.validation),
            "duration_s": longer.duration_s,
            "seeds": f"{plan.validation[0]} to {plan.validation[-1]}",
            "finalists": validated,
            "chosen": chosen.source,
            "default_goodput": _rounded(first.goodput.mean),
            "goodput": _rounded(last.goodput.mean),
            "difference": _interval(last.difference),
        },
    }


def _interval(difference: Estimate | None) -> dict[str, float | None] | None:
    """Mean and both ends of the interval; None for the default itself."""
    if difference is None:
        return None
    return {name: _rounded(getattr(difference, name)) for name in ("mean", "low", "high")}


def _rounded(goodput: float | None) -> float | None:
    return None if goodput is None else round(goodput, 6)
