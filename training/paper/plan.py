"""The plan of an experiment: which policies run in which conditions on which traces, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...envs import catalog
from ...envs.digest import digest
from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...policies import registry
from ..evaluation import check_evaluation
from ..executors.executor import Executor
from ..matrix.rates import Rates, rounded_rate
from ..saturation import TARGET
from ..seeds import HELD_OUT, SATURATION, check_claim, refuse_held_out, seeds_from
from ..source_hash import source_hash
from .config import Condition, ExperimentConfig, FigureConfig, Finding


@dataclass(frozen=True)
class Part:
    """One condition, ready to be evaluated.

    Attributes:
        condition: as written.
        scenario: what is run; its rate is missing until `with_rates`.
        policies: the text that is run, by the text as written.
        labels: the texts that differ, which are run.
    """

    condition: Condition
    scenario: Scenario
    policies: Mapping[str, str]
    labels: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the condition."""
        return self.condition.name


@dataclass(frozen=True)
class Plan:
    """An experiment that can be run.

    Attributes:
        config: as written.
        findings: those that are looked at.
        figures: those that show them.
        parts: the conditions that they need.
        conditions: all of them, by name, with the window that is asked for.
        seeds: one trace each.
        rate_seeds: those of a search for a rate.
        claim: whether the seeds are held out, for a claim.
    """

    config: ExperimentConfig
    findings: tuple[Finding, ...]
    figures: tuple[FigureConfig, ...]
    parts: tuple[Part, ...]
    conditions: Mapping[str, Condition]
    seeds: range
    rate_seeds: range
    claim: bool = False

    @property
    def runs(self) -> int:
        """Runs in all."""
        return sum(len(part.labels) for part in self.parts) * len(self.seeds)

    def part(self, name: str) -> Part:
        """The part of a condition."""
        return next(part for part in self.parts if part.name == name)


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for in place of the file.

    Attributes:
        findings: names; None: all.
        seeds: traces of each condition.
        first_seed: of them.
        duration_s: window.
        claim: whether held-out seeds are used.
        quick: whether the file's `quick` counts.
    """

    findings: Sequence[str] | None = None
    seeds: int | None = None
    first_seed: int | None = None
    duration_s: float | None = None
    claim: bool = False
    quick: bool = False


def plan_of(config: ExperimentConfig, conditions: Mapping[str, Condition], wanted: Wanted = Wanted()) -> Plan:
    """Looks up everything that an experiment names.

    Args:
        config: the file.
        conditions: of the file, by name.
        wanted: what is asked for in its place.

    Raises:
        ValueError: a name that stands for nothing, seeds that may not be used, or a policy that does not fit a
            cluster; names the condition.
    """
    known = {finding.name: finding for finding in config.findings}
    for name in wanted.findings or ():
        if name not in known:
            raise ValueError(f"{config.name}: {catalog.unknown('finding', name, known)}")
    findings = tuple(f for f in config.findings if wanted.findings is None or f.name in wanted.findings)
    shown = {finding.figure for finding in findings}
    figures = tuple(figure for figure in config.figures if figure.name in shown)
    arms = [arm for figure in figures for arm in figure.arms()]
    arms += [arm for finding in findings for arm in finding.arms()]
    seeds = _seeds(config, wanted)
    duration = wanted.duration_s if wanted.duration_s is not None else config.quick.duration_s if wanted.quick else None
    if duration is not None:
        conditions = {name: each.model_copy(update={"duration_s": duration}) for name, each in conditions.items()}
    parts = []
    for condition in conditions.values():
        texts = list(dict.fromkeys(arm.policy for arm in arms if arm.condition == condition.name))
        if texts:
            parts.append(part_of(condition, {text: text for text in texts}, seeds, wanted.claim))
    rate_seeds = SATURATION.take(config.quick.seeds if wanted.quick else config.rate_seeds)
    return Plan(config, findings, figures, tuple(parts), conditions, seeds, rate_seeds, wanted.claim)


def part_of(condition: Condition, policies: Mapping[str, str], seeds: range, claim: bool = False) -> Part:
    """A condition with its policies.

    Args:
        condition: as written.
        policies: the text to be run, by the text as written.
        seeds: one trace each.
        claim: whether the seeds are held out, for a claim.

    Raises:
        ValueError: as `plan_of`.
    """
    try:
        scenario = condition.scenario
        setting = Setting.of(scenario)
        if setting.traffic.single:
            raise ValueError(f"workload is {scenario.workload!r}, one recorded trace; a finding needs a family")
        if claim:
            check_claim(seeds, setting.duration_s)
        texts: dict[str, str] = {}
        labels: dict[str, str] = {}
        for written, text in policies.items():
            policy = registry.parse(text)
            texts[written] = labels.setdefault(f"{policy.name} {policy.hash}", text)
        check_evaluation(setting, tuple(labels.values()), seeds, records="none", claim=claim)
    except ValueError as error:
        raise ValueError(f"condition {condition.name}: {error}") from error
    return Part(condition, scenario, texts, tuple(labels.values()))


def with_rates(
    plan: Plan, rates: Rates, *, workers: int | Executor | None, say: Callable[[str], None]
) -> tuple[Part, ...]:
    """The parts with the rate of every condition: as given, that of another one, stored, or searched for.

    Args:
        plan: what is to be run.
        rates: what was searched for before.
        workers: processes, None for one per core; or an executor, which is used and kept.
        say: told what takes its time.

    Raises:
        ValueError: a search that finds none; names the condition.
        OSError: the rates cannot be written.
    """
    return tuple(
        replace(part, scenario=part.scenario.at_rate(rate_of(part.condition, plan, rates, workers, say)))
        for part in plan.parts
    )


def rate_of(
    condition: Condition, plan: Plan, rates: Rates, workers: int | Executor | None, say: Callable[[str], None]
) -> float:
    """The rate of a condition: as given, that of another one, stored, or searched for; requests per second.

    Args:
        condition: as written.
        plan: which it belongs to.
        rates: what was searched for before.
        workers: processes, None for one per core; or an executor, which is used and kept.
        say: told what takes its time.

    Raises:
        ValueError: a search that finds none; names the condition.
        OSError: the rates cannot be written.
    """
    if condition.rate_of:
        condition = plan.conditions[condition.rate_of]
    scenario = condition.scenario
    if scenario.rate is not None:
        return scenario.rate
    try:
        setting = Setting.of(scenario)
        target = condition.target or TARGET
        rate = setting.stored_rate if target == TARGET else None
        if rate is None:
            known = setting.configuration()
            # Round robin asks neither a predictor nor a poll.
            what = {"traffic": known["traffic"], "cluster": digest(replace(setting.cluster, name="", poll_interval=1))}
            what |= {"duration_s": setting.duration_s, "warmup_s": scenario.warmup_s, "target": target}
            what |= {"seeds": [plan.rate_seeds[0], len(plan.rate_seeds)], "code": source_hash()}
            rate = rates.searched(
                condition.name, scenario, what, target=target, seeds=plan.rate_seeds, workers=workers, say=say
            )
    except ValueError as error:
        raise ValueError(f"condition {condition.name}: {error}") from error
    return rounded_rate(rate * condition.factor)


def _seeds(config: ExperimentConfig, wanted: Wanted) -> range:
    usual = HELD_OUT.first if wanted.claim else config.first_seed
    first = usual if wanted.first_seed is None else wanted.first_seed
    count = wanted.seeds if wanted.seeds is not None else config.quick.seeds if wanted.quick else config.seeds
    seeds = seeds_from(first, count)
    if not wanted.claim:
        refuse_held_out(seeds, "an experiment without --claim")
    return seeds
