"""Episode after episode on the engines of a live cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import gymnasium as gym

from ...envs.admission import Admission
from ...envs.cluster import PS_PER_S, Cluster
from ...envs.digest import digest
from ...envs.rewards import Outcome
from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...envs.trace import Trace
from ...envs.traffic import FittedTraffic
from ..cluster_file import LiveCluster
from ..drive.plan import Plan
from ..drive.quiet import quieten
from ..service import Service, ServiceOptions
from .agent_policy import AgentPolicy
from .episode import Episode
from .moments import Moment, Observer

T = TypeVar("T")

MEET_S = 5.0
"""Wall seconds that engines have to answer at the start of an episode."""

REST_S = 10.0
"""Wall seconds that engines may take to come to rest, beyond the lease of KV that nobody came for."""


@dataclass(frozen=True, eq=False)
class Turn:
    """What came of a decision.

    Attributes:
        moment: the next decision, or the end.
        outcome: what the step brought.
        fallback: why the router sent the request elsewhere, or None.
    """

    moment: Moment
    outcome: Outcome
    fallback: str | None


def setting_on(scenario: Scenario, cluster: LiveCluster, believed: Cluster) -> Setting:
    """A scenario on a live cluster.

    Args:
        scenario: what arrives.
        cluster: says the targets.
        believed: its twin.

    Raises:
        ValueError: an unknown name, or an unreadable file.
    """
    entries = [entry for _, _, entry in cluster.engines()]
    gpus = sum(cluster.profile_of(entry).tensor_parallel for entry in entries)
    return Setting.on(scenario, believed, cluster.profile_of(entries[0]), gpus=gpus, targets=cluster.targets)


class Player:
    """Plays episodes, one at a time; lives in one event loop.

    Args:
        cluster: where the engines are.
        setting: what arrives; its cluster is the twin of this one.
        rows: of the observation per pool.
        rest_s: wall seconds that engines may take to come to rest between episodes.
    """

    def __init__(
        self, cluster: LiveCluster, setting: Setting, rows: tuple[int, int], rest_s: float
    ) -> None:
        self._cluster, self._setting, self._rest_s = cluster, setting, rest_s
        self._observer = Observer(rows, aggregated=setting.cluster.aggregated)
        self._begun = 0
        self._met: tuple[str, Setting] | None = None
        self._warned: set[str] = set()
        self.episode: Episode | None = None

    async def begin(self, seed: int) -> tuple[Moment, float]:
        """Ends the episode that goes on, if any, and brings another one to its first decision.

        Args:
            seed: of the trace.

        Returns:
            The first decision, and the seconds between the end of the warm start and it.

        Raises:
            ValueError: an engine is not what the cluster says, or nothing awaits a decision in the window.
            Unreachable: no engine of a pool answers.
            NotIdle: engines are busy with something else.
            MissingMetric: an engine does not say what it does.
        """
        await self.close()
        setting = self._setting
        learns = setting.predictor.learns
        # What the agent says counts, however busy this machine is when it is passed on.
        options = ServiceOptions(predictor=learns or "bucket", drain_s=0, decision_budget_s=60)
        service = Service(self._cluster, options, policy=AgentPolicy())
        try:
            await service.start(MEET_S)
            await self._rest(service)
            trace = self._trace(service, seed)
        except BaseException:
            await service.close()
            raise
        predicted = setting.predictor.static(trace, seed)
        plan = Plan(trace, self._cluster.model, uuid.uuid4().hex[:12], (seed, self._begun), predicted)
        self._begun += 1  # A trace that comes again has other prompts.
        self.episode = Episode(service, plan, predicted, self._observer, setting.window.start)
        try:
            moment = await self.episode.next()
            if moment.request < 0:
                raise ValueError(setting.nothing_to_decide(seed))
        except BaseException:
            await self.close()
            raise
        return moment, self.episode.fates.begin(moment.now)

    async def step(self, pair: tuple[int, int]) -> Turn:
        """Sends the request that awaits a decision, and waits for the next one."""
        episode = self._playing()
        fallback = await episode.send(pair)
        moment = await episode.next()
        return Turn(moment, episode.fates.account(moment.now), fallback)

    async def look(self, see: Callable[[Admission], T], moment: Moment) -> T:
        """Shows what the router knows now of the request that awaits a decision.

        Args:
            see: is called with the admission.
            moment: the last one; instances are taken for available as they were then.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        cluster = self._setting.cluster
        sizes = [size for size in (len(cluster.prefill), len(cluster.decode), len(cluster.mixed)) if size]
        opened = [bool(may) for mask, size in zip(moment.masks, sizes, strict=True) for may in mask[:size]]
        return self._playing().look(lambda admission, _: see(admission), opened)

    async def close(self) -> None:
        """Aborts what is in flight, and closes all connections."""
        episode, self.episode = self.episode, None
        if episode is not None:
            await episode.close()

    def _playing(self) -> Episode:
        if self.episode is None:
            raise RuntimeError("no episode has begun; call reset() first")
        return self.episode

    async def _rest(self, service: Service) -> None:
        """Waits until the engines are idle, and empties their prefix caches."""
        cluster = self._cluster
        limit = self._rest_s + cluster.lease_s * cluster.time_scale  # KV that nobody came for is held so long.
        up = [(engine.name, engine.client.url) for engine in service.engines if engine.health == "up"]

        def say(text: str) -> None:
            self._warn(text.removeprefix("warning: "), about="prefix cache")

        await quieten(up, idle_s=limit, reset=False, say=say)

    def _trace(self, service: Service, seed: int) -> Trace:
        """The trace of a seed, without requests that an engine, as it was met, could not take."""
        setting = self._fitted(service.router.state.cluster)
        trace = setting.traffic.trace(setting.scenario.rate, setting.window.end / PS_PER_S, seed)
        left, total = setting.traffic.left_out[seed] if isinstance(setting.traffic, FittedTraffic) else (0, 0)
        if left:
            text = f"{setting.name}, seed {seed}: {left} of {total} requests ({left / total:.2%}) do not fit"
            self._warn(f"{text} the engines and are left out", about="left out")
        return trace

    def _fitted(self, believed: Cluster) -> Setting:
        """The setting on the cluster as the router believes it to be now that it has met it."""
        sizes = digest(believed)
        if self._met is None or self._met[0] != sizes:  # A trace file need not be read at every reset.
            self._met = sizes, setting_on(self._setting.scenario, self._cluster, believed)
        return self._met[1]

    def _warn(self, text: str, about: str) -> None:
        """Says something about a subject once."""
        if about not in self._warned:
            self._warned.add(about)
            gym.logger.warn("%s", text)
