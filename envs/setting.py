"""A setting: a scenario whose names have been looked up, ready to make traces and to run policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import catalog, cluster_config, predictors, profiles, traces, unloaded, workloads
from .cluster import PS_PER_S, Cluster
from .cluster_config import ClusterConfig
from .digest import digest
from .predictors import Predictor
from .profiles import Profile, SloTargets
from .router_constants import RouterConstants, from_cluster
from .saturation_rates import stored_rate
from .scenario import DEFAULT_TOPOLOGY, Scenario
from .trace import Trace
from .traffic import FamilyTraffic, FileTraffic, FittedTraffic, Traffic
from .window import Window
from .workloads import Workload

if TYPE_CHECKING:
    from .admission import Router
    from .simulator import SimulationResult

DEFAULT_PROFILE = "a40-qwen2.5-3b"
DEFAULT_DURATION_S = 300.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """One seed's trace, ready to be run and measured.

    Attributes:
        trace: warm-up and measurement window.
        window: which arrivals count.
        alone: (N,) E2E of each request alone on the empty cluster, ps.
        feasible: (N,) whether each meets its targets alone.
    """

    trace: Trace
    window: Window
    alone: npt.NDArray[np.int64]
    feasible: npt.NDArray[np.bool_]

    @property
    def ceiling(self) -> float:
        """Share of the measured requests that meet their targets alone on the empty cluster."""
        return float(self.feasible[self.window.holds(self.trace)].mean())


@dataclass(frozen=True, eq=False)
class Setting:
    """A scenario whose names have been looked up.

    Attributes:
        scenario: what was asked for.
        cluster: the cluster.
        gpus: GPUs of the cluster.
        constants: what the router believes about it.
        traffic: makes traces.
    """

    scenario: Scenario
    cluster: Cluster
    gpus: int
    constants: RouterConstants
    traffic: Traffic

    @staticmethod
    def of(scenario: Scenario) -> Setting:
        """Looks up what the names of a scenario stand for.

        Raises:
            ValueError: an unknown name (with the nearest ones) or an unreadable file.
        """
        return _setting(scenario.model_dump_json(), _stamps(scenario))

    @staticmethod
    def on(scenario: Scenario, cluster: Cluster, profile: Profile, *, gpus: int, targets: SloTargets) -> Setting:
        """A scenario on a cluster that comes from elsewhere, such as the twin of a live one.

        What does not fit the cluster is left out of traces (`FittedTraffic`).

        Args:
            scenario: whose fields about the cluster are not looked at.
            cluster: the instances, as a router believes them to be.
            profile: of the cluster, for targets.
            gpus: of the cluster.
            targets: by SLO class, in place of the profile's.

        Raises:
            ValueError: an unknown name (with the nearest ones) or an unreadable file.
        """
        predictors.parse(scenario.predictor)
        traffic = FittedTraffic(_traffic(scenario, _family(scenario), profile, cluster), cluster, profile, targets)
        return Setting(scenario, cluster, gpus, from_cluster(cluster), traffic)

    @property
    def name(self) -> str:
        """`<workload>-<cluster>`, for folders and titles."""
        return f"{self.traffic.name}-{self.cluster.name}"

    @property
    def predictor(self) -> Predictor:
        """Gives ô."""
        if self.scenario.observability == "full":
            return predictors.parse("oracle")
        return predictors.parse(self.scenario.predictor)

    @property
    def duration_s(self) -> float:
        """Length of the measurement window, seconds."""
        if self.scenario.duration_s is not None:
            return self.scenario.duration_s
        return self.traffic.whole_s(self.scenario.rate, self.scenario.warmup_s) or DEFAULT_DURATION_S

    @property
    def stored_rate(self) -> float | None:
        """The stored saturation rate of this workload on this cluster; None if there is none."""
        if (
            self.traffic.single
            or self.scenario.workload != self.traffic.name
            or self.scenario.targets is not None
            or not _has_own_targets(self.scenario)
        ):
            return None
        return stored_rate(self.traffic.name, self.cluster)

    def at_known_rate(self) -> Setting | None:
        """The setting at its rate: as given, the trace's own, or the stored one; None: nobody has found it yet."""
        if self.scenario.rate is not None or self.traffic.own_rate is not None:
            return self
        stored = self.stored_rate
        return None if stored is None else Setting.of(self.scenario.at_rate(stored))

    @property
    def window(self) -> Window:
        """The measurement window."""
        return Window.after_warmup(self.scenario.warmup_s, self.duration_s)

    @property
    def pools(self) -> dict[str, int]:
        """Instances per role."""
        sizes = {role: len(getattr(self.cluster, role)) for role in ("prefill", "decode", "mixed")}
        return {role: size for role, size in sizes.items() if size}

    def nothing_to_decide(self, seed: int) -> str:
        """The sentence for an agent that would have nothing to do with the trace of a seed."""
        window = self.window
        return (
            f"{self.name}, seed {seed}: no request awaits a decision between {window.start / PS_PER_S:g} s and "
            f"{window.end / PS_PER_S:g} s; raise the rate or the duration"
        )

    def check_seeds(self, seeds: range) -> None:
        """Refuses several seeds where there is one real trace.

        Raises:
            ValueError: the traffic is a trace file and there is more than one seed.
        """
        if self.traffic.single and len(seeds) > 1:
            raise ValueError(
                f"seeds is {len(seeds)}; {self.traffic.name} is one trace, its interval comes from its own "
                "segments, so seeds must be 1"
            )

    def prepare(self, seed: int) -> Prepared:
        """The trace of a seed, checked against the cluster.

        Raises:
            ValueError: no rate where one is needed, a request that does not fit, or an empty window.
        """
        return _prepared(self, seed)

    def simulate(
        self, prepared: Prepared, policy: Router, seed: int, log_decisions: bool = False
    ) -> SimulationResult:
        """Runs a policy on a prepared trace.

        Args:
            prepared: the trace.
            policy: who decides.
            seed: for what is random in policy, predictor and dealing.
            log_decisions: keep what the router saw of the chosen pairs.
        """
        from .simulator import simulate

        return simulate(
            prepared.trace,
            self.cluster,
            policy=policy,
            predictor=self.predictor,
            seed=seed,
            constants=self.constants,
            log_decisions=log_decisions,
        )

    def configuration(self) -> dict[str, Any]:
        """What decides the traces and the cluster; JSON-able."""
        return {
            "traffic": self.traffic.configuration(),
            "cluster": {
                "name": self.cluster.name,
                "gpus": self.gpus,
                "content": digest(self.cluster),
                "constants": digest(self.constants),
            },
            "rate": self.scenario.rate,
            "duration_s": self.duration_s,
            "warmup_s": self.scenario.warmup_s,
            "predictor": str(self.predictor),
        }


def _stamps(scenario: Scenario) -> tuple[tuple[int, int], ...]:
    """Size and time of change of the files a scenario names, so that an edited file is read again."""
    stamps = []
    for name in (scenario.workload, scenario.cluster, scenario.profile):
        if isinstance(name, str) and _is_file(name):
            status = Path(name).stat()
            stamps.append((status.st_size, status.st_mtime_ns))
    return tuple(stamps)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a name that is too long for one
        return False


@lru_cache(maxsize=64)  # A policy may be trained on many scenarios in turn.
def _setting(text: str, _: tuple[tuple[int, int], ...]) -> Setting:
    scenario = Scenario.model_validate_json(text)
    predictors.parse(scenario.predictor)  # An unknown name should not wait for the first run.
    family = _family(scenario)
    config = _cluster(scenario, family)
    of_routers = {"routers": scenario.routers, "dealing": scenario.dealing}
    config = config.model_copy(update={name: value for name, value in of_routers.items() if value is not None})
    cluster = config.build()
    if scenario.observability == "full":
        cluster = replace(cluster, poll_interval=1)
    constants = config.router_constants()
    if scenario.constants_scale != 1:
        constants = constants.scaled(scenario.constants_scale)
    profile = config.profile if scenario.profile is None else profiles.load(scenario.profile)
    return Setting(scenario, cluster, _gpus(config), constants, _traffic(scenario, family, profile, cluster))


def _traffic(scenario: Scenario, family: Workload | None, profile: Profile, cluster: Cluster) -> Traffic:
    """What makes traces of a workload family or of a trace file."""
    if family is not None:
        return FamilyTraffic(family, profile, cluster)
    return FileTraffic(
        traces.read(scenario.workload, scenario.format),
        profile,
        cluster,
        targets=scenario.targets,
        tight_share=scenario.tight_share,
    )


def _family(scenario: Scenario) -> Workload | None:
    """The workload of a family; None for a trace file."""
    name = scenario.workload
    if name not in workloads.names() and not name.endswith((".yaml", ".yml")):
        if _is_file(name):
            return None
        raise ValueError(catalog.unknown("workload", name, workloads.names()) + "; nor is it a file")
    if scenario.format is not None:
        raise ValueError(
            f"format is {scenario.format!r}, but {name} is a workload; only trace files have formats"
        )
    if scenario.tight_share is not None:
        raise ValueError(
            f"tight_share is {scenario.tight_share:g}, but {name} is a workload, which has its own; "
            "only trace files take one"
        )
    changes = {} if scenario.targets is None else {"targets": scenario.targets}
    return workloads.make(name, **changes)


def _cluster(scenario: Scenario, family: Workload | None) -> ClusterConfig:
    if isinstance(scenario.cluster, ClusterConfig):
        return scenario.cluster
    if scenario.cluster is not None:
        return cluster_config.load(scenario.cluster)
    home = family.config.cluster if family else None
    if home is not None and scenario.topology is None and scenario.profile is None:
        return cluster_config.load(home)
    profile = family.config.profile if family else DEFAULT_PROFILE
    return cluster_config.from_topology(
        DEFAULT_TOPOLOGY if scenario.topology is None else scenario.topology,
        profile if scenario.profile is None else scenario.profile,
    )


def _has_own_targets(scenario: Scenario) -> bool:
    """Whether fixed SLO targets are those of the cluster's own profile, and not of another one named beside it."""
    if scenario.cluster is None or scenario.profile is None:
        return True
    return profiles.load(scenario.profile).slo_targets == _cluster(scenario, None).profile.slo_targets


def _gpus(config: ClusterConfig) -> int:
    """GPUs of a cluster: instances × tensor parallel size of their profiles."""
    return sum(pool.count * profiles.load(pool.profile).tensor_parallel for _, pool in config.pools())


# Policies follow each other on the same trace, so the last few are worth keeping.
@lru_cache(maxsize=2)
def _prepared(setting: Setting, seed: int) -> Prepared:
    window = setting.window
    trace = setting.traffic.trace(setting.scenario.rate, window.end / PS_PER_S, seed)
    if not window.holds(trace).any():
        raise ValueError(
            f"{trace.name}: no request arrives in the measurement window ({window.start / PS_PER_S:g} s to "
            f"{window.end / PS_PER_S:g} s); raise the rate or the duration"
        )
    trace.check_fits(setting.cluster)
    alone = unloaded.fastest(trace.prompt, trace.output, setting.cluster)
    return Prepared(trace, window, alone.e2e, ~unloaded.infeasible(trace, setting.cluster))
