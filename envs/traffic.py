"""Traffic: what makes the trace of a seed, a workload family or a trace file."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .cluster import PS_PER_S, Cluster
from .digest import digest
from .profiles import Profile, SloTargets
from .trace import Trace
from .traces import Preparation, TraceFile
from .traces.preparation import fits
from .workloads import Workload

if TYPE_CHECKING:
    from .workloads.unwritten import Unwritten


class Traffic(Protocol):
    """What makes traces.

    Attributes:
        name: for folders and titles.
        single: whether there is only one trace, whatever the seed.
        own_rate: requests per second of a recorded trace; None for a family.
    """

    name: str
    single: bool
    own_rate: float | None

    def trace(self, rate: float | None, end_s: float, seed: int) -> Trace:
        """The requests that arrive in [0, end_s)."""

    def whole_s(self, rate: float | None, warmup_s: float) -> float | None:
        """Seconds of a recorded trace after the warm-up at a rate; None for a family."""

    def report(self, rate: float | None) -> str:
        """What must be said with every use; empty for a family."""

    def configuration(self) -> dict[str, Any]:
        """What decides the traces; JSON-able."""


class FamilyTraffic:
    """Traces of a workload family: a new one for every seed."""

    single = False
    own_rate: float | None = None

    def __init__(self, workload: Workload, profile: Profile, cluster: Cluster) -> None:
        """Takes the workload, the profile that sets the targets and the cluster for relative ones."""
        self.name = workload.name
        self._workload, self._profile, self._cluster = workload, profile, cluster

    def trace(self, rate: float | None, end_s: float, seed: int) -> Trace:
        """The requests of a seed.

        Raises:
            ValueError: no rate, or one out of range.
        """
        if rate is None:
            raise ValueError(f"rate is missing; {self.name} needs one in requests/s (`saturate` finds one)")
        return self._workload.generate(rate, end_s, seed, profile=self._profile, cluster=self._cluster)

    def unwritten(self, rate: float | None, end_s: float, seed: int) -> Unwritten | None:
        """`trace` up to its arrivals, for a simulator that has a place for the rest; None where only a trace will do.

        Raises:
            ValueError: the rate is out of range.
        """
        if rate is None or self._workload.config.targets != "fixed":
            return None
        found = self._workload.unwritten(rate, end_s, seed, self._targets)
        return found if found.fits(self._cluster) else None

    @cached_property
    def _targets(self) -> SloTargets:
        return self._profile.slo_targets

    def whole_s(self, rate: float | None, warmup_s: float) -> float | None:
        """None: a family has no end."""
        return None

    def report(self, rate: float | None) -> str:
        """Nothing: what a family's traces hold is known."""
        return ""

    def configuration(self) -> dict[str, Any]:
        """The workload with its families, and the profile."""
        families = {name: family.model_dump(mode="json") for name, family in self._workload.families.items()}
        return {
            "workload": self._workload.config.model_dump(mode="json"),
            "families": families,
            "profile": self._profile.model_dump(mode="json"),
        }


class FileTraffic:
    """The one trace of a file, at its own rate or stretched to another.

    A seed decides only what the file leaves open: SLO classes, and arrivals inside a coarse time stamp.
    """

    single = True

    def __init__(
        self,
        file: TraceFile,
        profile: Profile,
        cluster: Cluster,
        *,
        targets: Literal["fixed", "relative"] | None = None,
        tight_share: float | None = None,
    ) -> None:
        """Takes the file, the profile that sets the targets, and the cluster that must hold the requests.

        Raises:
            ValueError: no request fits the cluster.
        """
        self.name = file.name
        self._file, self._profile, self._cluster = file, profile, cluster
        self._targets, self._tight_share = targets, tight_share
        self.own_rate: float | None = self._prepare(None, 0)[1].rate or None

    def trace(self, rate: float | None, end_s: float, seed: int) -> Trace:
        """The requests of the file that arrive in [0, end_s) after stretching.

        Raises:
            ValueError: a rate out of range.
        """
        trace, _ = self._prepare(rate, seed)
        return trace.select(trace.arrival < round(end_s * PS_PER_S))

    def whole_s(self, rate: float | None, warmup_s: float) -> float | None:
        """Seconds from the end of the warm-up to the last arrival, at a rate.

        Raises:
            ValueError: the warm-up outlasts the trace.
        """
        trace, _ = self._prepare(rate, 0)
        end_s = (int(trace.arrival[-1]) + 1) / PS_PER_S
        if end_s <= warmup_s:
            raise ValueError(f"warmup is {warmup_s:g} s, but {self.name} ends after {end_s:.1f} s")
        return end_s - warmup_s

    def report(self, rate: float | None) -> str:
        """What was left out of the file, and what no routing could serve in time."""
        return str(self._prepare(rate, 0)[1])

    def configuration(self) -> dict[str, Any]:
        """The file's content, and what decides classes and targets."""
        return {
            "file": self.name,
            "content": digest(replace(self._file, path="")),
            "targets": self._targets,
            "tight_share": self._tight_share,
            "profile": self._profile.model_dump(mode="json"),
        }

    def _prepare(self, rate: float | None, seed: int) -> tuple[Trace, Preparation]:
        return self._file.prepare(
            self._profile,
            self._cluster,
            rate=rate,
            target_kind=self._targets,
            tight_share=self._tight_share,
            seed=seed,
        )


class FittedTraffic:
    """Traffic for a cluster that others have built: what does not fit is left out, and fixed targets are the cluster's.

    Args:
        traffic: makes the traces.
        cluster: that must hold the requests.
        profile: whose targets stand in the traces.
        targets: by SLO class, in their place.
    """

    def __init__(self, traffic: Traffic, cluster: Cluster, profile: Profile, targets: SloTargets) -> None:
        self.name, self.single, self.own_rate = traffic.name, traffic.single, traffic.own_rate
        self.left_out: dict[int, tuple[int, int]] = {}
        """Of the traces made so far, by seed: requests that do not fit, and requests in all."""
        self._traffic, self._cluster = traffic, cluster
        self._profiles, self._targets = profile.slo_targets, targets

    def trace(self, rate: float | None, end_s: float, seed: int) -> Trace:
        """The requests that arrive in [0, end_s) and fit every instance.

        Raises:
            ValueError: no rate where one is needed, one out of range, or no request fits.
        """
        trace = self._traffic.trace(rate, end_s, seed)
        short, small = fits(trace.prompt, trace.output, self._cluster)
        kept = short & small
        self.left_out[seed] = int((~kept).sum()), len(kept)
        if not kept.any() and len(kept):
            raise ValueError(
                f"{trace.name}: no request of {len(kept)} fits the engines of {self._cluster.name}, whose context "
                f"limit is {min(engine.max_model_len for engine in self._cluster.instances)} tokens"
            )
        trace = trace if kept.all() else trace.select(kept)
        return replace(
            trace,
            ttft_target=_by_class(trace.ttft_target, trace, self._profiles.ttft, self._targets.ttft),
            tpot_target=_by_class(trace.tpot_target, trace, self._profiles.tpot, self._targets.tpot),
        )

    def whole_s(self, rate: float | None, warmup_s: float) -> float | None:
        """Seconds of a recorded trace after the warm-up at a rate; None for a family."""
        return self._traffic.whole_s(rate, warmup_s)

    def report(self, rate: float | None) -> str:
        """What must be said with every use of a trace file."""
        return self._traffic.report(rate)

    def configuration(self) -> dict[str, Any]:
        """What decides the traces; JSON-able."""
        own = {"ttft": list(self._targets.ttft), "tpot": list(self._targets.tpot)}
        return self._traffic.configuration() | {"slo": own}


def _by_class(
    given: npt.NDArray[np.int64], trace: Trace, old: tuple[int, int], new: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """Targets (N,), those of the new classes where they are fixed ones of the old; relative or a file's own stay."""
    fixed = bool((given == np.array(old)[trace.slo]).all())
    return np.array(new)[trace.slo] if fixed else given
