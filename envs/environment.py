"""`DisaggRoute-v0`: the environment of one episode at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from pydantic import BaseModel

from . import actions, spaces
from .cluster import PS_PER_S
from .environment_config import DEFAULT, EnvironmentConfig
from .environment_spec import JsonSpec
from .episodes import Episodes
from .simulator import stepping as W
from .simulator.loop import DECIDE
from .streams import checked_seed

if TYPE_CHECKING:
    from .admission import Admission
    from .screen import Screen
    from .simulator import Simulator

Observation = dict[str, npt.NDArray[np.float32]]
Info = dict[str, Any]
T = TypeVar("T")

TRAINING_SEEDS = 10_000
"""A reset without a seed draws a trace from the seeds below this one: those for tuning, none of those for validation
or claims (docs/evaluation.md)."""


class DisaggRouteEnv(JsonSpec, gym.Env[Observation, Any]):
    """Route requests in a disaggregated LLM serving cluster.

    ## Description

    Requests arrive at a cluster of vLLM-like engines. For each of them the agent picks the prefill instance that
    processes its prompt and the decode instance that generates its output; the KV cache moves between the two. A
    request is *missed* unless its first token comes within its TTFT target and its tokens within its TPOT target. The
    cluster is simulated event by event (docs/model.md); simulated time passes as fast as the processor allows.

    ## Action space

    `MultiDiscrete([P, D])`: index of a prefill and of a decode instance. With mixed instances `Discrete(M)`. With
    `pad_to` the pools have as many indices as rows. `DiscreteActions` (envs/wrappers.py) makes one `Discrete(P·D)` of
    the pair. Instances that are down or draining, and padding, are masked: `info["action_mask"]` holds one int8 array
    per pool (a tuple, as `MultiDiscrete.sample(mask=…)` takes it; one array with mixed instances), `action_masks()`
    the same as one bool array for MaskablePPO. An action that is masked or out of range raises `ValueError`.

    ## Observation space

    A `Dict` of float32 boxes: `request (6,)`, `prefill (P, 22)`, `decode (D, 26)`; with mixed instances `request
    (6,)` and `mixed (M, 32)`. Columns, units and divisors: `disaggroute.envs.features.describe()`. They hold what a
    real router knows (its own ledger, predicted output lengths, polls that are up to 50 ms old), never the
    simulator's hidden state, unless `observability="full"` says so. Values are divided by fixed numbers so that usual
    ones are of order 1. After the last request the observation is zero.

    ## Starting state

    `reset(seed=s)` draws trace s: the same requests that `disaggroute evaluate` drives with seed s. The first
    `warmup_s` seconds are routed by `least-loaded`, so the agent meets a cluster in operation. A later `reset()`
    without a seed draws one of the tuning seeds 0 to 9,999 from the generator that the last seed started. The same
    seed and the same actions give the same bytes.

    ## Reward

    `slo-miss` (default): −1 for each request whose miss has become certain since the last step, so the return is
    −(missed requests). A miss is certain when the TTFT target has passed without a first token, when more than
    (o − 1) · TPOT target has passed since the first token, or when the request fails. `goodput`: +1 for each request
    that ends in time. `latency`: minus the seconds that requests spent in the cluster. Others can be registered
    (docs/extending/reward.md). Requests of the warm start pay nothing. A request that arrives while no instance of a
    pool may be assigned fails without a step; one that does so before the first decision counts in the first step.

    ## Episode end

    Arrivals stop after `warmup_s + duration_s` simulated seconds; with the last decision the cluster drains, every
    outcome is counted, and the episode is *terminated*. It is never truncated.

    ## Information

    | key | value |
    |---|---|
    | `dt` | simulated seconds since the last decision (at a reset: since the warm start ended), to discount by |
    | `now` | simulated time, s |
    | `request` | index in the trace of the request that awaits a decision, −1 after the last |
    | `missed` | requests whose miss became certain in this step (a tuple of indices in the trace, ascending) |
    | `action_mask` | see above |
    | `trace_seed` | seed of the trace |
    | `outcome` | after the last step: `requests`, `missed`, `goodput` of the episode |

    ## Arguments

    ```python
    import disaggroute
    import gymnasium as gym

    env = gym.make("DisaggRoute-v0", config="mixed-bursty-a40", topology="2P6D", reward="latency")
    ```

    `config` names a file in `configs/environments` (`disaggroute list environments`), a YAML file, or is a mapping;
    every other argument replaces one of its fields: `workload`, `topology` or `cluster`, `profile`, `rate` (requests
    per second; default: the stored saturation rate), `duration_s`, `warmup_s`, `predictor`, `targets`,
    `constants_scale`, `observability`, `reward`, `pad_to`, and `routers` with `dealing`: of several routers
    (docs/several-routers.md) the agent plays each in turn, and sees its ledger alone. `render_mode`: `ansi`,
    `rgb_array` or `human`. All are JSON-able, so `env.spec.to_json()` works. An environment can be pickled and copied
    until its first reset. `backend`: `simulator`, or `live` for engines that run (docs/environment.md, "On a live
    cluster").

    The passive checker and the order enforcer of `gym.make` are off, since each costs more than a step; the
    environment checks actions and order itself. `gym.make(…, disable_env_checker=False)` turns the checker on.

    ## References

    arXiv 2609.16206, "Calibrate, then route".

    ## Version history

    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - declared so by Gymnasium
        "render_modes": ["ansi", "rgb_array", "human"], "render_fps": 20,
    }

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | BaseModel = DEFAULT,
        *,
        render_mode: str | None = None,
        **overrides: Any,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode is {render_mode!r}; allowed are {', '.join(self.metadata['render_modes'])}")
        self.config = EnvironmentConfig.load(config, **overrides)
        self.render_mode = render_mode
        self._episodes = episodes = Episodes(self.config, 1)
        rows, aggregated = (episodes.prefill_rows, episodes.decode_rows), episodes.aggregated
        self.observation_space: gym.Space[Any] = spaces.observation_space(*rows, aggregated=aggregated)
        self.action_space = spaces.action_space(*rows, aggregated=aggregated)
        self._begun = False
        self._awaits = False
        self._screen: Screen | None = None
        self._action: tuple[int, int] | None = None
        self._return = 0.0
        self._warned = False
        self._look()

    def _look(self) -> None:
        """Views of the memory that the compiled step reads and writes."""
        episodes = self._episodes
        self._desk, self._actions = episodes.words(0), episodes.chosen
        self._arrays = {key: array[0] for key, array in episodes.observations().items()}
        self._masks = episodes.prefill_mask[0], episodes.decode_mask[0]

    def __getstate__(self) -> dict[str, Any]:
        """What makes the environment again, in this process or in another.

        Raises:
            TypeError: an episode has begun.
        """
        views = ("_desk", "_actions", "_arrays", "_masks")
        return {key: value for key, value in self.__dict__.items() if key not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes it again."""
        self.__dict__.update(state)
        self._look()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begins an episode.

        Args:
            seed: of the trace; None: one of the tuning seeds, drawn.
            options: none are known.

        Raises:
            ValueError: a bad seed, an option is given, or the trace has no request for the agent.
        """
        if options:
            raise ValueError(f"options is {options!r}; reset takes none")
        if seed is not None:
            seed = checked_seed(seed)
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(TRAINING_SEEDS)) if seed is None else seed
        self._begun = self._awaits = False
        self._episodes.begin(0, chosen)
        self._episodes.run()
        self._episodes.check_begun(0)
        self._begun = self._awaits = True
        self._action, self._return = None, 0.0
        if self.render_mode == "human":
            self.render()
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Routes the request that awaits a decision, and runs to the next one.

        Args:
            action: (prefill, decode), or the index of a mixed instance.

        Raises:
            ResetNeeded: before the first `reset`, or after the end of the episode.
            ValueError: the action is no such index, out of range or masked.
        """
        if not self._awaits:
            what = "the episode has ended" if self._begun else "no episode has begun"
            raise ResetNeeded(f"{what}; call reset() before step()")
        episodes = self._episodes
        self._action = self._taken(action)
        self._desk[W.W_TASK] = W.TASK_SEND
        episodes.run()
        terminated = self._desk[W.W_STATUS] != DECIDE
        if terminated:
            self._awaits = False
        info = self._info()
        if terminated:
            info["outcome"] = episodes.totals(0)
        reward = episodes.reward_of(0)
        self._return += reward
        if self.render_mode == "human":
            self.render()
        return self._observation(), reward, terminated, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """(P + D,) or (M,) which indices of the action's parts are allowed, pool after pool."""
        episodes = self._episodes
        parts = [episodes.decode_mask[0]]
        if not episodes.aggregated:
            parts.insert(0, episodes.prefill_mask[0])
        return np.concatenate(parts).astype(np.bool_)

    def render(self) -> Any:
        """The cluster as it is: what `render_mode` asks for, or None without one.

        Returns:
            `ansi` a text, `rgb_array` an image of shape (H, W, 3), uint8; `human` None: it shows the image in a window,
            or warns once that there is no display.

        Raises:
            ResetNeeded: before the first `reset`.
        """
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode, as in gym.make('DisaggRoute-v0', render_mode='ansi')")
            return None
        if not self._begun:
            raise ResetNeeded("no episode has begun; call reset() before render()")
        from . import rendering
        from .cluster_view import view_of

        goodput = self._episodes.totals(0)["goodput"]
        view = view_of(self.simulator, action=self._action, reward=self._return, goodput=goodput)
        if self.render_mode == "ansi":
            return rendering.ansi(view)
        frame = rendering.rgb_array(view)
        if self.render_mode == "rgb_array":
            return frame
        self._show(frame)
        return None

    def _show(self, frame: npt.NDArray[np.uint8]) -> None:
        if self._screen is None:
            from .screen import Screen

            self._screen = Screen()
        try:
            self._screen.show(frame)
        except RuntimeError as error:  # A long training should not die for want of a window.
            if not self._warned:
                gym.logger.warn(str(error))
            self._warned = True

    def close(self) -> None:
        """Closes the window, if one is open."""
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    @property
    def simulator(self) -> Simulator:
        """The simulated cluster: for study and pictures, not for agents.

        Raises:
            RuntimeError: before the first reset.
        """
        return self._episodes.simulator(0)

    def at_admission(self, look: Callable[[Admission], T]) -> T:
        """Shows the admission that awaits a decision.

        Args:
            look: is called with it; it may be routed by a policy until this returns.

        Returns:
            What `look` returned.

        Raises:
            RuntimeError: no request awaits a decision.
        """
        return look(self.simulator.admission())

    def _taken(self, action: Any) -> tuple[int, int]:
        """Writes the action where the compiled step reads it."""
        try:
            prefill, decode = actions.pair_of(action, aggregated=self._episodes.aggregated)
            self._actions[0, 0], self._actions[0, 1] = prefill, decode
        except (TypeError, ValueError):  # the latter also where a number has more than 64 bits
            raise actions.unreadable(action, aggregated=self._episodes.aggregated) from None
        return prefill, decode

    def _observation(self) -> Observation:
        return {key: array.copy() for key, array in self._arrays.items()}

    def _info(self) -> Info:
        episodes, desk = self._episodes, self._desk
        of_prefill, of_decode = self._masks
        return {
            "dt": float(desk[W.W_DT]) / PS_PER_S,  # as NumPy divides: a vector environment gives the same bits
            "now": float(desk[W.W_LAST]) / PS_PER_S,
            "request": desk[W.W_REQUEST],
            "missed": episodes.missed_ids(0, desk[W.W_MISSED]),
            "action_mask": of_decode.copy() if episodes.aggregated else (of_prefill.copy(), of_decode.copy()),
            "trace_seed": episodes.seeds.item(0),
        }
