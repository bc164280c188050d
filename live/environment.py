"""`DisaggRoute-v0` on the engines of a live cluster: the same environment, in real time."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from pydantic import BaseModel

from ..envs import actions, rewards, spaces
from ..envs.admission import Admission
from ..envs.cluster import PS_PER_S
from ..envs.environment import TRAINING_SEEDS, Info, Observation
from ..envs.environment_config import DEFAULT, EnvironmentConfig
from ..envs.environment_spec import JsonSpec
from ..envs.setting import Setting
from ..envs.streams import checked_seed
from ..envs.trace import Trace
from .cluster_file import LiveCluster
from .engine import Engine
from .event_loop import LoopThread
from .play.fates import Fates
from .play.moments import Moment
from .play.player import REST_S, Player, setting_on
from .running import running
from .twin import twin

T = TypeVar("T")

SIMULATED = ("topology", "profile")
"""Arguments that describe a simulated cluster."""

_players: weakref.WeakValueDictionary[tuple[str, int], LiveDisaggRouteEnv] = weakref.WeakValueDictionary()
"""The environment of this process that plays an engine, by address."""

os.register_at_fork(after_in_child=_players.clear)


class LiveDisaggRouteEnv(JsonSpec, gym.Env[Observation, Any]):
    """`DisaggRouteEnv` over engines that run: `gym.make("DisaggRoute-v0", backend="live", cluster=…)`.

    Spaces, features, rewards and infos are those of the simulated environment, made by the same code; times are the
    engines' seconds (`LiveCluster.time_scale`). Requests arrive when they are due, whether the agent is ready or not:
    they queue, and the time that the agent takes counts in their TTFT. An observation is what the router knows when
    the agent is asked; the ledger goes on while it thinks. Two episodes with one seed have the same requests, and
    never the same times.

    `info` also has `fallback`: None, or why the router sent the request elsewhere (`unavailable`: an instance went
    away after the observation); as in front of clients, `least-loaded` decides then. What an engine fails before its
    first token is tried again on other engines.

    Args:
        config: as for the simulated environment; the cluster that it names is replaced by this one.
        cluster: a live cluster (docs/live.md): a name of `configs/live`, a YAML file, or its fields.
        render_mode: None.
        rest_s: wall seconds that engines may take to come to rest before an episode, beyond their lease.
        **overrides: fields of the configuration.

    Raises:
        ValueError: a bad configuration or cluster, no rate, or an argument that only the simulator has.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | BaseModel = DEFAULT,
        *,
        cluster: str | Path | Mapping[str, Any] | LiveCluster | None = None,
        render_mode: str | None = None,
        rest_s: float = REST_S,
        **overrides: Any,
    ) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode is {render_mode!r}; a live cluster is not rendered, so leave it out")
        if isinstance(rest_s, bool) or not isinstance(rest_s, int | float) or not 0 <= rest_s < float("inf"):
            raise ValueError(f"rest_s is {rest_s!r}; it must be a number of at least 0")
        for name in SIMULATED:
            if overrides.get(name) is not None:
                raise ValueError(f"{name} is {overrides[name]!r}; with backend live the cluster's file says it")
        self.render_mode = None
        self.cluster = _cluster(cluster)
        self.config = EnvironmentConfig.load(config, **overrides | dict.fromkeys((*SIMULATED, "cluster")))
        self._setting = _setting(self.config, self.cluster)
        believes = self._setting.cluster
        self._aggregated = believes.aggregated
        self._rows = self.config.rows(
            len(believes.prefill), len(believes.decode) or len(believes.mixed), aggregated=self._aggregated
        )
        self._reward = rewards.make(self.config.reward)
        self.observation_space: gym.Space[Any] = spaces.observation_space(*self._rows, aggregated=self._aggregated)
        self.action_space = spaces.action_space(*self._rows, aggregated=self._aggregated)
        self._rest_s = rest_s
        self._stage: _Stage | None = None
        self._moment: Moment | None = None
        self._begun = False
        self._trace_seed = -1

    @property
    def spec(self) -> EnvSpec | None:
        """How `gym.make` made the environment."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        JsonSpec.spec.fset(self, spec)  # type: ignore[attr-defined]
        if self._spec is not None:
            self._spec.nondeterministic = True

    def __getstate__(self) -> dict[str, Any]:
        """What makes the environment again, in this process or in another.

        Raises:
            TypeError: it has begun to play.
        """
        if self._stage is not None:
            raise TypeError(
                "a live environment cannot be copied or pickled while it plays; do it before the first reset() or "
                "after close(), or make another one from its spec"
            )
        return self.__dict__ | {"_moment": None}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begins an episode; what is in flight is aborted. Returns when the warm start is over, in real time.

        Args:
            seed: of the trace; None: one of the tuning seeds, drawn.
            options: none are known.

        Raises:
            ValueError: a bad seed, an option is given, another environment plays these engines, an engine is not what
                the cluster says, or nothing awaits a decision in the window.
            ConnectionError: no engine of a pool answers.
            RuntimeError: the engines do not come to rest: somebody else uses them.
        """
        if options:
            raise ValueError(f"options is {options!r}; reset takes none")
        if seed is not None:
            seed = checked_seed(seed)
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(TRAINING_SEEDS)) if seed is None else seed
        stage = self._on_stage()
        self._begun, self._moment = False, None
        moment, dt = stage.thread.run(stage.player.begin(chosen))
        self._begun, self._moment, self._trace_seed = True, moment, chosen
        return moment.observation, self._info(moment, dt, (), None)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Routes the request that awaits a decision, and waits for the next one.

        Args:
            action: (prefill, decode), or the index of a mixed instance.

        Raises:
            ResetNeeded: before the first `reset`, after the end of the episode, or after a step that failed.
            ValueError: the action is no such index, out of range or masked.
        """
        before = self._moment
        if before is None or before.request < 0:
            over = "the last step did not come to its end" if before is None else "the episode has ended"
            what = over if self._begun else "no episode has begun"
            raise ResetNeeded(f"{what}; call reset() before step()")
        pair = self._taken(action, before)
        stage = self._on_stage()
        self._moment = None  # An interrupted step leaves nothing to go on with.
        turn = stage.thread.run(stage.player.step(pair))
        self._moment = moment = turn.moment
        outcome = turn.outcome
        info = self._info(moment, outcome.dt, tuple(outcome.missed.tolist()), turn.fallback)
        terminated = moment.request < 0
        if terminated:
            info["outcome"] = self._fates().totals()
        return moment.observation, float(self._reward.of(outcome)), terminated, False, info

    def at_admission(self, look: Callable[[Admission], T]) -> T:
        """Shows what the router knows right now of the request that awaits a decision.

        Instances are available in it as they were at the last observation, so that what a policy picks is allowed.

        Args:
            look: is called with the admission, in the thread of the router, which waits for it.

        Returns:
            What `look` returned.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        if self._stage is None or self._moment is None:
            raise RuntimeError("no request awaits a decision; call reset() first")
        return self._stage.thread.run(self._stage.player.look(look, self._moment))

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """(P + D,) or (M,) which indices of the action's parts were allowed at the last observation, pool after pool.

        Raises:
            ResetNeeded: no episode has begun.
        """
        if self._moment is None:
            raise ResetNeeded("no episode has begun; call reset() before action_masks()")
        return np.concatenate(self._moment.masks).astype(np.bool_)

    @property
    def simulator(self) -> Any:
        """There is none.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("backend live has no simulator, so nothing to snapshot, clone or draw; see `records`")

    @property
    def trace(self) -> Trace:
        """The requests of the episode.

        Raises:
            RuntimeError: before the first reset.
        """
        return self._fates().trace

    @property
    def records(self) -> npt.NDArray[np.void]:
        """(N,) records of the episode's requests so far (a copy); rows are complete for those that have ended.

        Times are ps of the trace. What a router cannot see (`reserve`, the transfer, preemptions) is −1.

        Raises:
            RuntimeError: before the first reset.
        """
        return self._fates().records.copy()

    def close(self) -> None:
        """Aborts what is in flight, closes all connections and ends the thread; a reset begins anew."""
        stage, self._stage = self._stage, None
        self._moment, self._begun = None, False
        for address in [address for address, env in _players.items() if env is self]:
            del _players[address]
        if stage is not None:
            stage.close()

    def _on_stage(self) -> _Stage:
        """The thread that plays, which begins with the first reset."""
        if self._stage is None:
            addresses = {entry.address: entry for _, _, entry in self.cluster.engines()}
            for address, entry in addresses.items():
                if address in _players:
                    raise ValueError(f"{entry.url} is played by another environment of this process; close() that one")
            self._stage = _Stage(self, Player(self.cluster, self._setting, self._rows, self._rest_s))
            _players.update(dict.fromkeys(addresses, self))
        return self._stage

    def _fates(self) -> Fates:
        """Of the episode that is played."""
        if self._stage is None or self._stage.player.episode is None:
            raise RuntimeError("no episode has begun; call reset() first")
        return self._stage.player.episode.fates

    def _taken(self, action: Any, moment: Moment) -> tuple[int, int]:
        """The pair that an action names, if it was allowed when the agent was asked."""
        try:
            prefill, decode = actions.pair_of(action, aggregated=self._aggregated)
        except (TypeError, ValueError):
            raise actions.unreadable(action, aggregated=self._aggregated) from None
        named = [("mixed", decode)] if self._aggregated else [("prefill", prefill), ("decode", decode)]
        pools = [(role, chosen, mask) for (role, chosen), mask in zip(named, moment.masks, strict=True)]
        wrong = actions.complaint("action", pools)
        if wrong:
            raise ValueError(wrong)
        return prefill, decode

    def _info(self, moment: Moment, dt: float, missed: tuple[int, ...], fallback: str | None) -> Info:
        masks = tuple(mask.copy() for mask in moment.masks)
        return {
            "dt": dt,
            "now": self._fates().now / PS_PER_S,
            "request": moment.request,
            "missed": missed,
            "action_mask": masks[0] if self._aggregated else masks,
            "trace_seed": self._trace_seed,
            "fallback": fallback,
        }


class _Stage:
    """The thread of an environment and what plays in it; ends with the environment, or with the process."""

    def __init__(self, env: LiveDisaggRouteEnv, player: Player) -> None:
        self.player = player
        self.thread = LoopThread("disaggroute live environment")
        self._end = weakref.finalize(env, _end, self.thread, player)

    def close(self) -> None:
        """Ends it."""
        self._end()


def _end(thread: LoopThread, player: Player) -> None:
    thread.close(player.close())


def _cluster(given: str | Path | Mapping[str, Any] | LiveCluster | None) -> LiveCluster:
    if given is None:
        raise ValueError("cluster is missing; backend live needs a name of configs/live, a YAML file or its fields")
    if isinstance(given, LiveCluster):
        return given
    return LiveCluster.load(dict(given)) if isinstance(given, Mapping) else running(given)


def _setting(config: EnvironmentConfig, cluster: LiveCluster) -> Setting:
    """What a configuration names on a cluster whose engines nobody has met yet, at a known rate.

    Raises:
        ValueError: something that only the simulator has, or no rate.
    """
    if config.observability != "router":
        raise ValueError(f"observability is {config.observability}; with backend live a router sees what routers see")
    if config.constants_scale != 1:
        raise ValueError(
            f"constants_scale is {config.constants_scale:g}; with backend live the router believes the profile"
        )
    engines = [
        Engine.of(role, cluster.engine_name(role, k), entry, faults=1, pause_s=1.0)
        for role, k, entry in cluster.engines()
    ]
    setting = setting_on(config.scenario, cluster, twin(cluster, engines))
    if config.rate is None and setting.traffic.own_rate is None:
        raise ValueError(
            f"rate is missing; {setting.name} needs one in requests/s "
            "(`disaggroute saturate … --backend live` finds the one of a cluster)"
        )
    return setting
