"""The live backend: policies of an evaluation, run on the engines of a live cluster."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..envs import catalog
from ..envs.backend import Outcome, Say
from ..envs.cluster import PS_PER_S
from ..envs.digest import digest
from ..envs.records import FAILED, REJECTED
from ..envs.scenario import Scenario
from ..envs.setting import Prepared, Setting
from ..envs.traffic import FittedTraffic
from ..envs.yaml_file import read_mapping
from .cluster_file import LiveCluster
from .drive.assembly import assemble
from .drive.attempt import Attempt, Kept, lateness, run_of
from .drive.driving import DriveOptions, Wanted, drive
from .drive.plan import Plan
from .engine import Engine, engines_of, meet_every
from .event_loop import new_event_loop
from .running import running
from .twin import twin

MEET_S = 10.0
"""Wall time that an engine has to say what it is."""

LATE_SHARE = 0.05
"""Part of the shortest TTFT target by which requests may be sent late (P99) before that is warned of."""

Gates = Callable[[LiveCluster, Say], Awaitable[Any]]
"""Checks a cluster; gives something with `passed` and `problems`."""


class LiveBackend:
    """Runs policies on a live cluster, one after the other.

    Each run has a fresh router in a process of its own, idle engines and empty caches, and an open-loop load in this
    process. What the client and the router see is written as it comes, in attempts (`drive/attempt.py`).

    Args:
        cluster: the engines.
        setting: the scenario on the cluster's twin (`meet` makes it).
        options: how runs are driven.
        gates: checked before the first run; None: none.
        words: of the command line that set it up.
    """

    name = "live"
    serial = True
    sources = ("live",)

    def __init__(
        self,
        cluster: LiveCluster,
        setting: Setting,
        options: DriveOptions,
        gates: Gates | None = None,
        words: tuple[str, ...] = ("--backend", "live"),
    ) -> None:
        self.cluster, self.setting, self.drive_options, self.options = cluster, setting, options, words
        self._gates = gates

    @classmethod
    def meet(
        cls,
        scenario: Scenario,
        cluster: LiveCluster,
        options: DriveOptions | None = None,
        *,
        gates: Gates | None = None,
        words: tuple[str, ...] = ("--backend", "live"),
    ) -> LiveBackend:
        """Asks the engines what they are, and prepares a scenario on them.

        Args:
            scenario: what is sent.
            cluster: the engines.
            options: how runs are driven.
            gates: checked before the first run; None: none.
            words: of the command line that set it up.

        Raises:
            ValueError: an engine is not what the cluster says, or the scenario cannot be run on it.
            Unreachable: an engine does not answer.
        """
        if scenario.observability != "router":
            raise ValueError(f"observability is {scenario.observability}; a live cluster shows what a router sees")
        if scenario.constants_scale != 1:
            raise ValueError(
                f"constants_scale is {scenario.constants_scale:g}; on a live cluster the router believes its profile: "
                "change that"
            )
        engines = asyncio.run(_met(cluster))
        believed = twin(cluster, engines)
        profile = cluster.profile_of(next(entry for _, _, entry in cluster.engines()))
        gpus = sum(cluster.profile_of(entry).tensor_parallel for _, _, entry in cluster.engines())
        setting = Setting.on(scenario, believed, profile, gpus=gpus, targets=cluster.targets)
        return cls(cluster, setting, options or DriveOptions(), gates, words)

    def at_rate(self, rate: float) -> LiveBackend:
        """The same at another rate, requests per second of the engines."""
        setting = replace(self.setting, scenario=self.setting.scenario.at_rate(rate))
        return LiveBackend(self.cluster, setting, self.drive_options, self._gates, self.options)

    def configuration(self) -> dict[str, Any]:
        """The cluster but for its addresses, which change when engines start again, and how runs are driven."""
        cluster = self.cluster
        about = {name: getattr(cluster, name) for name in ("name", "model", "lease_s", "time_scale", "first_token")}
        engines = [
            [
                role,
                cluster.engine_name(role, k),
                entry.profile,
                entry.overrides.model_dump(exclude_none=True, exclude={"kv_tokens"}) | sizes,
            ]
            for (role, k, entry), sizes in zip(cluster.engines(), self._sizes(), strict=True)
        ]
        driven = self.drive_options.model_dump(exclude={"idle_s", "on_engine_loss"})
        return {"backend": self.name, "live_cluster": about | {"engines": engines}, "driven": driven}

    def _sizes(self) -> Iterator[dict[str, int]]:
        """What each engine says of its KV cache and its context limit."""
        believed = self.setting.cluster
        for spec in (*believed.prefill, *believed.decode, *believed.mixed):
            yield {name: getattr(spec, name) for name in ("block_size", "num_blocks", "max_model_len")}

    def begin(self, say: Say) -> None:
        """Compiles what routers need and checks the gates.

        Raises:
            RuntimeError: a gate has failed.
        """
        from .compilation import compile_router

        compile_router()
        if self._gates is not None:
            report = asyncio.run(_checked(self._gates, self.cluster, say))
            if not report.passed:
                raise RuntimeError(
                    f"the gates of {self.cluster.name} failed, so nothing was measured: {'; '.join(report.problems)} "
                    "(--no-gates goes on without)"
                )

    def run(self, prepared: Prepared, policy: str, seed: int, *, log_decisions: bool, place: Path, say: Say) -> Outcome:
        """Drives a run, or takes up one whose driving had ended before a crash.

        Raises:
            RuntimeError: as `drive.driving.drive`, or another evaluation writes to the same folder.
            OSError: an engine does not answer, or files cannot be written.
        """
        about = {
            "requests": len(prepared.trace),
            "trace": digest(prepared.trace),
            "cluster": self.cluster.name,
            "policy": policy,
            "seed": seed,
            "time_scale": self.cluster.time_scale,
        }
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            kept = run_of(place, about, lambda attempt: self._drive(prepared, policy, seed, about, attempt, say))
        outcome = assemble(kept, self.cluster)
        self._tell(prepared, policy, seed, kept, outcome, say)
        return outcome

    def _drive(
        self, prepared: Prepared, policy: str, seed: int, about: dict[str, Any], attempt: Attempt, say: Say
    ) -> None:
        predictor = self.setting.predictor
        run = f"{policy} {seed} {about['trace']} {attempt.number}"
        name = hashlib.sha256(run.encode()).hexdigest()[:8]
        plan = Plan(
            prepared.trace,
            self.cluster.model,
            name,
            (seed, int(name, 16)),
            predictor.static(prepared.trace, seed),
        )
        wanted = Wanted(self.cluster, policy, seed, predictor.learns or "bucket", plan, about)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(drive(wanted, self.drive_options, attempt, say))

    def _tell(self, prepared: Prepared, policy: str, seed: int, kept: Kept, outcome: Outcome, say: Say) -> None:
        traffic = self.setting.traffic
        left, total = traffic.left_out.get(seed, (0, 0)) if isinstance(traffic, FittedTraffic) else (0, 0)
        if left:
            say(f"seed {seed}: {left} of {total} requests ({left / total:.2%}) do not fit the engines and are left out")
        late = np.array(lateness(kept.seen)) / PS_PER_S
        p50, p99 = np.quantile(late, (0.5, 0.99), method="inverted_cdf")
        status = outcome.records["status"]
        counts = [f"{int((status == k).sum())} {word}" for k, word in ((FAILED, "failed"), (REJECTED, "rejected"))]
        fallbacks = sum(reason is not None for reason in outcome.columns["fallback"])
        text = f"seed {seed}, {policy}: {len(kept.seen)} requests, {', '.join(counts)}; sent late by "
        text += f"{p50 * 1e3:.2f} ms (P50), {p99 * 1e3:.2f} ms (P99), {late[-1] * 1e3:.2f} ms (most)"
        say(text + (f"; {fallbacks} decisions by least-loaded in its place" if fallbacks else ""))
        lost = [s for s, record in zip(kept.seen, kept.records, strict=True) if record is None and not s.http_status]
        if lost:
            say(
                f"warning: {len(lost)} requests never reached the router ({lost[0].error}): no policy is to blame for "
                "them, this machine cannot drive such a load"
            )
        bound = LATE_SHARE * float(prepared.trace.ttft_target.min()) / PS_PER_S
        if p99 > bound:
            say(
                f"warning: the load was late by more than {bound * 1e3:.1f} ms ({LATE_SHARE:.0%} of the shortest TTFT "
                "target): this machine is too busy to drive it"
            )


def live_backend(
    scenario: Scenario,
    *,
    cluster: str,
    gates: bool = True,
    reset: bool = True,
    on_engine_loss: str | None = None,
    live_options: Path | None = None,
) -> LiveBackend:
    """The live backend of the command line.

    Args:
        scenario: what is sent.
        cluster: name or YAML file of a live cluster.
        gates: whether they are checked first.
        reset: whether an engine whose prefix cache cannot be reset is an error.
        on_engine_loss: go-on or stop; None: as the file has it.
        live_options: YAML file of `DriveOptions`; what is given here goes first.

    Raises:
        ValueError: as `LiveBackend.meet`, or a value that is not allowed.
        Unreachable: an engine does not answer.
    """
    given = read_mapping(live_options, str(live_options)) if live_options else {}
    given |= {} if reset else {"reset": False}
    given |= {} if on_engine_loss is None else {"on_engine_loss": on_engine_loss}
    options = catalog.validate(DriveOptions, given, str(live_options or "live"))
    words = ["--backend", "live", *(() if gates else ("--no-gates",)), *(() if reset else ("--no-reset",))]
    words += [] if on_engine_loss is None else ["--on-engine-loss", on_engine_loss]
    words += [] if live_options is None else ["--live-options", str(live_options)]
    served = running(cluster)
    return LiveBackend.meet(scenario, served, options, gates=_gates if gates else None, words=tuple(words))


def _gates(cluster: LiveCluster, say: Say) -> Awaitable[Any]:
    from .gate.gates import run_gates

    return run_gates(cluster, tell=say)


async def _checked(gates: Gates, cluster: LiveCluster, say: Say) -> Any:
    return await gates(cluster, say)


async def _met(cluster: LiveCluster) -> list[Engine]:
    engines = engines_of(cluster)
    try:
        await meet_every(engines, cluster, MEET_S)
    finally:
        for engine in engines:
            await engine.client.close()
    return engines


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """The folder of a run, to which one process writes at a time.

    Raises:
        RuntimeError: another one does.
    """
    file = os.open(place / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RuntimeError(f"another evaluation does the run in {place}; wait for it") from None
    finally:
        os.close(file)
