"""What an evaluation ran, in words and numbers, and the command that runs it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator

from ..envs.cluster_config import ROLES, ClusterConfig
from ..envs.scenario import Scenario
from ..envs.window import Window

if TYPE_CHECKING:
    from ..envs.backend import Backend
    from ..envs.setting import Setting


OPTIONS = {
    "format": "--format",
    "topology": "--topology",
    "cluster": "--cluster",
    "profile": "--profile",
    "routers": "--routers",
    "dealing": "--dealing",
    "rate": "--rate",
    "duration_s": "--duration",
    "warmup_s": "--warmup",
    "predictor": "--predictor",
    "targets": "--targets",
    "tight_share": "--tight-share",
    "constants_scale": "--constants-scale",
}
"""Fields of a scenario, and the options of every command that set them; `observability` is set in Python alone."""


class Description(BaseModel):
    """What all runs of a results folder have in common, for people.

    Attributes:
        workload: name of the workload family or of the trace file.
        single: whether it is one recorded trace, whatever the seed.
        cluster: name of the cluster.
        pools: instances by role: prefill and decode, or mixed.
        profiles: names of the profiles of each pool, in the order of its instances.
        gpus: GPUs of the cluster.
        rate: requests per second.
        duration_s: length of the measurement window.
        warmup_s: time before it, not measured.
        predictor: of the output length.
        targets: fixed, relative, or of the file.
        constants_scale: factor on the times that the router believes in.
        observability: router or full.
        routers: number of router replicas.
        dealing: how requests are dealt to several routers.
        backend: what ran the policies: simulator, or live.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str
    single: bool
    cluster: str
    pools: dict[str, int]
    profiles: dict[str, tuple[str, ...]]
    gpus: int
    rate: float
    duration_s: float
    warmup_s: float
    predictor: str
    targets: str
    constants_scale: float
    observability: str
    # What came later has defaults, which are not written.
    routers: int = 1
    dealing: str = "round-robin"
    backend: str = "simulator"

    @field_validator("pools", "profiles")
    @classmethod
    def _prefill_first(cls, by_role: dict[str, Any]) -> dict[str, Any]:
        return {role: by_role[role] for role in ROLES if role in by_role}

    @property
    def aggregated(self) -> bool:
        """Whether the cluster has mixed instances only."""
        return "mixed" in self.pools

    @property
    def where(self) -> str:
        """The cluster, and whether it is a live one."""
        return self.cluster if self.backend == "simulator" else f"{self.cluster} ({self.backend})"

    @property
    def window(self) -> Window:
        """The measurement window."""
        return Window.after_warmup(self.warmup_s, self.duration_s)

    @property
    def routers_in_words(self) -> str:
        """Such as `4 routers (random dealing)`; the dealing is left out where it is in turn."""
        words = "1 router" if self.routers == 1 else f"{self.routers} routers"
        return words if self.dealing == "round-robin" else f"{words} ({self.dealing} dealing)"

    def title(self, seeds: Sequence[int]) -> str:
        """What was run, in one line."""
        several = f" behind {self.routers_in_words}" if self.routers > 1 else ""
        text = f"{self.workload} on {self.where}{several}: {self.rate:.4g} requests/s, "
        text += f"{self.duration_s:g} s measured after {self.warmup_s:g} s, predictor {self.predictor}, "
        return text + ("one trace" if self.single else seeds_in_words(seeds))


def describe(setting: Setting, backend: str = "simulator") -> Description:
    """Describes a setting whose rate is known, and what runs policies in it."""
    scenario, traffic = setting.scenario, setting.traffic
    rate = scenario.rate if scenario.rate is not None else traffic.own_rate
    engines = {role: getattr(setting.cluster, role) for role in ROLES}
    return Description(
        workload=traffic.name,
        single=traffic.single,
        cluster=setting.cluster.name,
        pools=setting.pools,
        profiles={
            role: tuple(dict.fromkeys(engine.name for engine in pool)) for role, pool in engines.items() if pool
        },
        gpus=setting.gpus,
        rate=0.0 if rate is None else rate,
        duration_s=setting.duration_s,
        warmup_s=scenario.warmup_s,
        predictor=str(setting.predictor),
        targets=_targets(setting),
        constants_scale=scenario.constants_scale,
        observability=scenario.observability,
        backend=backend,
        routers=setting.cluster.routers,
        dealing=setting.cluster.dealing,
    )


def command(
    scenario: Scenario,
    labels: Sequence[str],
    seeds: range,
    *,
    records: str = "first",
    claim: bool = False,
    backend: Backend | None = None,
) -> str:
    """The command line that makes an evaluation again, with its rate and its seeds spelled out.

    Args:
        scenario: what drives which cluster, at a known rate.
        labels: policies.
        seeds: one trace each.
        records: of which runs records are kept.
        claim: whether the evaluation carries a claim.
        backend: what runs the policies; by default the simulator.

    Returns:
        The line; empty for what only Python can ask for.
    """
    if only_python(scenario):
        return ""
    words = ["disaggroute", "evaluate", scenario.workload, *(["--claim"] if claim else []), *scenario_words(scenario)]
    live = backend is not None and backend.serial
    words += ["--first-seed", str(seeds[0]), "--seeds", str(len(seeds))]
    words += ["--records", records] if live or records != "first" else []
    if backend is not None:
        words += backend.options
    if live and "--warmup" not in words:  # Another one is usual there.
        words += ["--warmup", exact(scenario.warmup_s)]
    return shlex.join([*words, "--policies", ",".join(labels)])


def only_python(scenario: Scenario) -> bool:
    """Whether a scenario holds what no option can say."""
    return isinstance(scenario.cluster, ClusterConfig) or scenario.observability != "router"


def scenario_words(scenario: Scenario) -> list[str]:
    """The options that set the fields of a scenario, but for its workload; what is as by default is left out."""
    words = []
    for name, option in OPTIONS.items():
        value = getattr(scenario, name)
        if value != Scenario.model_fields[name].default:
            words += [option, exact(value)]
    return words


def exact(value: Any) -> str:
    """A value of an option as text, in as few digits as give it back."""
    return str(value) if not isinstance(value, float) or float(f"{value:g}") != value else f"{value:g}"


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Such as `seed 7`, `seeds 3 to 9` or `seeds 3, 5 and 9`."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"


def _targets(setting: Setting) -> str:
    known = setting.traffic.configuration()
    kind = known["targets"] if setting.traffic.single else known["workload"]["targets"]
    return kind or "of the file, else fixed"
