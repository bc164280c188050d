"""The saturation rate: where a reference policy reaches a given share of the ceiling.

Policies differ only under contention, so each scenario is driven at the rate where round robin is in the
middle of its collapse. All rates are tried on the same seeds: a small change of rate moves every arrival a
little and draws nothing anew, so that goodput is smooth in the rate and bisection finds the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..envs.scenario import Scenario
from ..envs.setting import Setting
from ..policies import registry
from .compilation import compile_all
from .evaluation import check_pools
from .executors.choice import executor_of
from .executors.executor import Executor
from .metrics import goodput
from .seeds import SATURATION, refuse_held_out

TARGET = 0.84
"""Share of the ceiling that round robin reaches at saturation."""

TOLERANCE = 0.0005
"""Distance from the target at which the search ends."""

NARROW = 1.001
"""Ratio of the two rates of the bracket at which the search ends."""

FAR = 0.03
"""Distance of the share found from its target beyond which the result is in doubt."""

LIVE_TOLERANCE, LIVE_NARROW = 0.01, 1.02
"""The same on a live cluster, where each probe takes its time and two of one rate differ by more than those above."""

FEWEST_REQUESTS = 20
"""Requests expected in the window at the lowest rate that is tried."""

MOST_REQUESTS = 500_000
"""Requests expected in a run at the highest rate that is tried."""


@dataclass(frozen=True)
class Probe:
    """What happened at one rate.

    Attributes:
        rate: requests per second.
        goodput: mean over the seeds.
        ceiling: mean over the seeds.
    """

    rate: float
    goodput: float
    ceiling: float

    @property
    def share(self) -> float:
        """Goodput over the ceiling (0 when nothing is feasible)."""
        return self.goodput / self.ceiling if self.ceiling > 0 else 0.0


@dataclass(frozen=True)
class Saturation:
    """Result of the search.

    Attributes:
        found: the probe nearest to the target.
        target: share of the ceiling that was sought.
        policy: the reference policy.
        probes: all probes, in the order in which they were made.
    """

    found: Probe
    target: float
    policy: str
    probes: tuple[Probe, ...]

    @property
    def rate(self) -> float:
        """The saturation rate, requests per second."""
        return self.found.rate

    @property
    def doubt(self) -> str:
        """Why it may be none: goodput that jumps by chance from rate to rate; empty where there is no doubt."""
        share = self.found.share
        if abs(share - self.target) <= FAR:
            return ""
        return (
            f"the nearest share to the target of {self.target:g} is {share:.3f}: the goodput of so short a window "
            "jumps by chance; a longer --duration or more --seeds help"
        )


@dataclass(frozen=True)
class ProbeTask:
    """One seed of one probe."""

    scenario: Scenario
    policy: str
    seed: int


def saturate(
    scenario: Scenario,
    *,
    target: float = TARGET,
    policy: str = "round-robin",
    seeds: range | None = None,
    workers: int | Executor | None = None,
    on_probe: Callable[[Probe], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Saturation:
    """Finds the rate at which the reference policy reaches `target` × ceiling.

    Args:
        scenario: its rate is only where the search starts.
        target: share of the ceiling, between 0 and 1.
        policy: the reference policy.
        seeds: traces to average over; by default the first five of the saturation range, or the one trace of
            a file.
        workers: processes, None for one per core; or an executor, which is used and kept.
        on_probe: told after each rate.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: a target out of range or out of reach (the message says what can be reached), held-out
            seeds, or a bad scenario.
    """
    if not 0 < target < 1:
        raise ValueError(f"target is {target}; it must lie between 0 and 1")
    setting = Setting.of(scenario)
    check_pools(registry.parse(policy), setting)
    if seeds is None:
        seeds = SATURATION.take(1 if setting.traffic.single else 5)
    refuse_held_out(seeds, "saturate")
    setting.check_seeds(seeds)
    with executor_of(workers) as pool:
        compile_all(say or (lambda _: None))
        probe = lambda rate: _probe(scenario.at_rate(rate), policy, seeds, pool)  # noqa: E731
        return search(setting, target, policy, probe, on_probe)


def search(
    setting: Setting,
    target: float,
    policy: str,
    probe: Callable[[float], Probe],
    on_probe: Callable[[Probe], None] | None = None,
    *,
    tolerance: float = TOLERANCE,
    narrow: float = NARROW,
) -> Saturation:
    """Brackets the rate by factors of two and bisects.

    Args:
        setting: whose rate is where the search starts.
        target: share of the ceiling, between 0 and 1.
        policy: the reference policy.
        probe: tries a rate.
        on_probe: told after each rate.
        tolerance: distance from the target at which it ends.
        narrow: ratio of the two rates of the bracket at which it ends.

    Raises:
        ValueError: the target is out of reach; says what can be reached.
    """
    probes: dict[float, Probe] = {}

    def share(rate: float) -> float:
        if rate not in probes:
            probes[rate] = probe(rate)
            if on_probe:
                on_probe(probes[rate])
        return probes[rate].share

    lowest, highest = rate_limits(setting)
    start = setting.scenario.rate or setting.traffic.own_rate or float(len(setting.cluster.instances))
    low, high = _bracket(share, min(max(start, lowest), highest), lowest, highest, target)
    if low is None or high is None:
        reached = [probe.share for probe in probes.values()]
        raise ValueError(
            f"target is {target:g}; at {min(probes):g} to {max(probes):g} requests/s {policy} reaches "
            f"{min(reached):.3f} to {max(reached):.3f} of the ceiling, so name a target in between"
        )
    while high / low > narrow and min(abs(p.share - target) for p in probes.values()) > tolerance:
        middle = _rounded(math.sqrt(low * high))
        if middle in (low, high):
            break
        if share(middle) >= target:
            low = middle
        else:
            high = middle
    # Few traces give few different shares; of the rates with the same one, the highest is next to the collapse.
    found = min(probes.values(), key=lambda p: (abs(p.share - target), -p.rate))
    return Saturation(found, target, policy, tuple(probes.values()))


def rate_limits(setting: Setting) -> tuple[float, float]:
    """Lowest and highest rate that a search tries, requests per second.

    A family has a fixed window. The window of a trace file shrinks as its rate grows, so there the highest is
    where the window has shrunk to a thousandth of what it is at the trace's own rate.
    """
    own = setting.traffic.own_rate
    if own is not None:
        return own / 1_000, own * 1_000
    end_s = setting.scenario.warmup_s + setting.duration_s
    return _rounded(FEWEST_REQUESTS / setting.duration_s), _rounded(MOST_REQUESTS / end_s)


def probe_seed(task: ProbeTask) -> tuple[float, float]:
    """Goodput and ceiling of one seed (in a worker process)."""
    setting = Setting.of(task.scenario)
    prepared = setting.prepare(task.seed)
    result = setting.simulate(prepared, registry.parse(task.policy), task.seed)
    return goodput(result.records, prepared), prepared.ceiling


def _probe(scenario: Scenario, policy: str, seeds: range, pool: Executor) -> Probe:
    tasks = [ProbeTask(scenario, policy, seed) for seed in seeds]
    # Sorted: results come in any order, and a sum of floats depends on it.
    goodputs, ceilings = zip(*sorted(pool.run(probe_seed, tasks)), strict=True)
    assert scenario.rate is not None
    return Probe(scenario.rate, math.fsum(goodputs) / len(seeds), math.fsum(ceilings) / len(seeds))


def _bracket(
    share: Callable[[float], float], start: float, lowest: float, highest: float, target: float
) -> tuple[float | None, float | None]:
    """Two rates, a factor 2 apart at most, above and below the target; None where a limit was hit."""
    rate = _rounded(start)
    if share(rate) >= target:
        while rate < highest:
            following = _rounded(min(rate * 2, highest))
            if share(following) < target:
                return rate, following
            rate = following
        return rate, None
    while rate > lowest:
        following = _rounded(max(rate / 2, lowest))
        if share(following) >= target:
            return following, rate
        rate = following
    return None, rate


def _rounded(rate: float) -> float:
    """Four digits: a rate that people can copy."""
    return float(f"{rate:.4g}")
