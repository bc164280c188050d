"""The plan of a matrix: its conditions with rates, policies and seeds, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import __version__
from ...envs import catalog
from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...policies import registry
from ..evaluation import check_evaluation
from ..executors.executor import Executor
from ..runs import fingerprint
from ..seeds import HELD_OUT, VALIDATION, check_claim, refuse_held_out, seeds_from
from ..source_hash import source_hash
from .config import Condition, Contender, MatrixConfig
from .rates import RATES, Rates, rounded_rate

DATA = "DISAGGROUTE_DATA"
"""Environment variable that names the folder of trace files."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One condition, ready to be evaluated.

    Attributes:
        condition: as written.
        scenario: what is run; its rate is missing until `with_rates`.
        policies: text of each policy, by its name in tables.
        labels: the texts that differ, which are run.
        seeds: one trace each.
        claim: whether its runs count as a claim: a recorded trace has no held-out seeds.
    """

    condition: Condition
    scenario: Scenario
    policies: dict[str, str]
    labels: tuple[str, ...]
    seeds: range
    claim: bool

    @property
    def name(self) -> str:
        """Of the condition."""
        return self.condition.name


@dataclass(frozen=True)
class Plan:
    """A matrix that can be run.

    Attributes:
        config: as written.
        parts: the conditions, but those whose trace is not there.
        reference: name of the policy that the others are compared with.
        skipped: a sentence for each condition that is left out.
        duration_s: window in place of the conditions' own; None: theirs.
    """

    config: MatrixConfig
    parts: tuple[Part, ...]
    reference: str
    skipped: tuple[str, ...]
    duration_s: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the policies, the reference first."""
        names = [name for name in self.parts[0].policies if name != self.reference]
        return (self.reference, *names)

    @property
    def runs(self) -> int:
        """Runs in all."""
        return sum(len(part.labels) * len(part.seeds) for part in self.parts)

    @property
    def folder(self) -> Path:
        """`results/matrix-<name>-<key>`: other conditions get another folder."""
        known: dict[str, Any] = {"scenario": self.config.scenario, "conditions": self.config.conditions}
        key = fingerprint(known | {"duration_s": self.duration_s, "code": source_hash(), "version": __version__})
        return Path("results") / f"matrix-{self.config.name}-{key[:6]}"

    def configuration(self) -> dict[str, Any]:
        """What a folder belongs to; the folders of the conditions know the rest."""
        return {"matrix": self.config.name}


def plan_of(
    config: MatrixConfig,
    conditions: Sequence[Condition],
    *,
    only: Sequence[str] | None = None,
    others: Sequence[str] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    duration_s: float | None = None,
    claim: bool = False,
    data: Path | None = None,
) -> Plan:
    """Looks up everything that a matrix names.

    Args:
        config: the file.
        conditions: of the file.
        only: names of the conditions to be run; None: all.
        others: policies to be compared with the reference, in place of the file's.
        seeds: traces of each condition, in place of the file's.
        first_seed: likewise.
        duration_s: window of each condition that is no recorded trace, likewise.
        claim: whether held-out seeds are used, for a claim.
        data: folder of trace files; None: `$DISAGGROUTE_DATA`.

    Raises:
        ValueError: a name that stands for nothing, seeds that may not be used, a policy that does not fit a cluster,
            or no condition that can be run; names the condition.
    """
    check_data(data)
    names = [condition.name for condition in conditions]
    for name in only or ():
        if name not in names:
            raise ValueError(f"{config.name}: {catalog.unknown('condition', name, names)}")
    contenders = _contenders(config, others)
    first = first_seed if first_seed is not None else HELD_OUT.first if claim else config.first_seed
    chosen = seeds_from(first, config.seeds if seeds is None else seeds)
    if not claim:
        refuse_held_out(chosen, "an evaluation without --claim")
    parts, skipped = [], []
    for condition in conditions:
        if only is not None and condition.name not in only:
            continue
        scenario, missing = with_trace(condition.scenario, data)
        if missing:
            skipped.append(f"condition {condition.name} is skipped: {missing}")
            continue
        try:
            parts.append(_part(condition, scenario, contenders, chosen, duration_s, claim))
        except ValueError as error:
            raise ValueError(f"condition {condition.name}: {error}") from error
    if not parts:
        raise ValueError(f"{config.name}: no condition can be run; {'; '.join(skipped)}")
    return Plan(config, tuple(parts), config.reference, tuple(skipped), duration_s)


def with_rates(plan: Plan, out: Path, workers: int | Executor | None, say: Say) -> Plan:
    """The plan with the rate of every condition: as given, the trace's own, stored, or searched for.

    A rate that was searched for is kept in the folder, and not searched for again.

    Raises:
        ValueError: a search that finds none, or an unreadable file of rates.
        OSError: the file cannot be written.
    """
    rates, parts = Rates(out / RATES), []
    for part in plan.parts:
        rate = _known_rate(part)
        if rate is None and part.condition.saturation | (Setting.of(part.scenario).traffic.own_rate is None):
            what = part.condition.model_dump(mode="json") | {"code": source_hash()}
            rate = rates.searched(part.name, part.scenario, what, workers=workers, say=say) * part.condition.factor
        scenario = part.scenario if rate is None else part.scenario.at_rate(rounded_rate(rate))
        parts.append(replace(part, scenario=scenario))
    return replace(plan, parts=tuple(parts))


def _known_rate(part: Part) -> float | None:
    """The rate without a search; None: it must be searched for, or a trace keeps its own."""
    if part.scenario.rate is not None:
        return part.scenario.rate
    stored = Setting.of(part.scenario).stored_rate
    return None if stored is None else stored * part.condition.factor


def _contenders(config: MatrixConfig, others: Sequence[str] | None) -> list[Contender]:
    if others is None:
        return list(config.policies)
    reference = next(each for each in config.policies if each.label == config.reference)
    known = {each.label: each for each in config.policies}
    texts = [text.strip() for text in others if text.strip() != reference.label]
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"policies names {text} twice; each policy runs once on each trace")
    return [reference, *(known.get(text) or Contender(policy=text) for text in texts)]


def _part(
    condition: Condition,
    scenario: Scenario,
    contenders: Sequence[Contender],
    seeds: range,
    duration_s: float | None,
    claim: bool,
) -> Part:
    setting = Setting.of(scenario)
    single = setting.traffic.single
    if single:
        # The trace of a file is the same whatever the seed, so that no seed of it is held out.
        seeds, claim = seeds_from(VALIDATION.first if claim else seeds[0], 1), False
    elif duration_s is not None:
        scenario = Scenario.make(**(scenario.model_dump() | {"duration_s": duration_s}))
    if claim:
        check_claim(seeds, Setting.of(scenario).duration_s)
    texts = {each.label: each.policy_in(condition.name, setting) for each in contenders}
    labels: dict[str, str] = {}
    for label, text in texts.items():
        policy = registry.parse(text)
        texts[label] = labels.setdefault(f"{policy.name} {policy.hash}", text)
    check_evaluation(scenario, tuple(labels.values()), seeds, records="none", claim=claim)
    return Part(condition, scenario, texts, tuple(labels.values()), seeds, claim)


def with_trace(scenario: Scenario, data: Path | None) -> tuple[Scenario, str]:
    """The scenario with the place of its trace file, and why it cannot be run; empty where it can."""
    name = scenario.workload
    if "." not in name or name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return scenario, ""
    folder = data or (Path(os.environ[DATA]) if os.environ.get(DATA) else None)
    if folder is None:
        return scenario, f"the trace {name} is not there; name its folder by --data or ${DATA}"
    for place in (folder / name, folder / "traces" / name):
        if place.is_file():
            return Scenario.make(**(scenario.model_dump() | {"workload": str(place)})), ""
    return scenario, f"the trace {name} is not in {folder}"


def check_data(data: Path | None) -> None:
    """Refuses a folder of traces that is none.

    Raises:
        ValueError: there is no such folder.
    """
    if data is not None and not data.is_dir():
        raise ValueError(f"data is {data}; it must be a folder of trace files")
