"""Episode after episode on the engines of a live cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import gymnasium as gym

from ...envs import profiles
from ...envs.admission import Admission
from ...envs.cluster import PS_PER_S
from ...envs.rewards import Outcome
from ...envs.setting import Setting
from ...envs.trace import Trace
from ...envs.traces.preparation import fits
from ..cluster_file import LiveCluster
from ..service import Service, ServiceOptions
from ..twin import with_targets
from .agent_policy import AgentPolicy
from .episode import Episode
from .moments import Moment, Observer
from .prompts import Requests
from .quiet import come_to_rest

T = TypeVar("T")

MEET_S = 5.0
"""Wall seconds that engines have to answer at the start of an episode."""


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
        """
        await self.close()
        setting = self._setting
        learns = setting.predictor.learns
        options = ServiceOptions(predictor=learns or "bucket", drain_s=0)
        service = Service(self._cluster, options, policy=AgentPolicy())
        try:
            await service.start(MEET_S)
            for problem in await come_to_rest(service, self._rest_s):
                self._warn(problem)
            trace = self._trace(service, seed)
        except BaseException:
            await service.close()
            raise
        predicted = setting.predictor.static(trace, seed)
        requests = Requests(trace, predicted, self._cluster.model, seed, self._begun)
        self._begun += 1
        self.episode = Episode(service, trace, requests, self._observer, setting.window.start)
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

    def _trace(self, service: Service, seed: int) -> Trace:
        """The trace of a seed, without requests that some engine could not take."""
        setting = self._setting
        whole = setting.traffic.trace(setting.scenario.rate, setting.window.end / PS_PER_S, seed)
        context, kv = fits(whole.prompt, whole.output, service.router.state.cluster)
        kept = context & kv
        if not kept.all():
            self._warn(
                f"{whole.name}, seed {seed}: {(~kept).mean():.1%} of the requests are left out, "
                f"{int((~context).sum())} over the context limit and {int((context & ~kv).sum())} over the KV cache of "
                "an engine",
                about="left out",
            )
            whole = whole.select(kept)
        return with_targets(whole, profiles.load(self._cluster.profile).slo_targets, self._cluster)

    def _warn(self, text: str, about: str = "") -> None:
        """Says something once."""
        if (about or text) not in self._warned:
            self._warned.add(about or text)
            gym.logger.warn("%s", text)
