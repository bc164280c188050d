"""Episodes: what the single and the vector environment have in common.

One object runs any number of episodes side by side. It owns the arrays that the compiled step reads and writes; what an
environment hands out is copied from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from ctypes import addressof, c_char
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import features, rewards
from .actions import complaint
from .cluster import PS_PER_S
from .compilation import announce
from .crew import Crew
from .environment_config import EnvironmentConfig
from .feature_arrays import FeatureArrays
from .rewards import CountedReward, Outcome
from .setting import Setting
from .simulator import Simulator
from .simulator import stepping as W
from .simulator.arena import Arena, aligned_words
from .simulator.loop import DECIDE
from .simulator.simulator import resolve_predictor
from .trace import Trace
from .traffic import FamilyTraffic

if TYPE_CHECKING:
    from .workloads.unwritten import Unwritten

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Masks = npt.NDArray[np.int8]
Objects = npt.NDArray[np.object_]
Told = tuple[Floats, Floats, Ints, Bools]

MAX_THREADS = 1_024



class Episodes:
    """Episodes of one configuration, run side by side.

    Args:
        config: the configuration.
        count: how many episodes.
        threads: that step them; what comes out does not depend on it.

    Raises:
        ValueError: a rate is missing, `pad_to` does not hold the cluster, or a number is out of range.
    """

    def __init__(self, config: EnvironmentConfig, count: int, threads: int = 1) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads is {threads!r}; it must be an integer from 1 to {MAX_THREADS}")
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"num_envs is {count!r}; it must be an integer of at least 1")
        self.config = config
        self.count = count
        self.threads = int(threads)
        self._crew = Crew(min(self.threads, count)) if min(self.threads, count) > 1 else None
        setting = Setting.of(config.scenario)
        known = setting.at_known_rate()
        if known is None:
            raise ValueError(
                f"rate is missing, and no saturation rate is stored for {setting.name}; give rate=… in requests/s "
                "(`disaggroute saturate` finds one)"
            )
        self.setting = known
        self._predictor = self.setting.predictor
        cluster, traffic = self.setting.cluster, self.setting.traffic
        self._learns = self._predictor.learns
        self._unwritten: Callable[..., Unwritten | None] | None = None
        learns = self._learns and self._predictor.predict is None
        if learns and cluster.routers == 1 and isinstance(traffic, FamilyTraffic):
            self._unwritten = traffic.unwritten
        self.aggregated = cluster.aggregated
        self.reward = rewards.make(config.reward)
        self._counted = isinstance(self.reward, CountedReward)
        self.prefills = len(cluster.prefill)
        self.decodes = len(cluster.decode) or len(cluster.mixed)
        self.prefill_rows, self.decode_rows = config.rows(self.prefills, self.decodes, aggregated=self.aggregated)
        self.start = self.setting.window.start
        """First instant at which the agent decides, ps."""
        self.instances_change = bool(cluster.events)
        """Whether instances go down or drain in an episode, so that masks change."""
        of_decode = features.MIXED if self.aggregated else features.DECODE
        self._shapes = (
            (count, len(features.REQUEST)),
            (count, self.prefill_rows, len(features.PREFILL)),
            (count, self.decode_rows, len(of_decode)),
        )
        self._layout = self._laid_out()
        fields: Mapping[str, tuple[Any, ...]] = self._layout.fields or {}
        self._offsets = tuple(fields[name][1] for name in ("prefill", "decode", "reward"))
        self._profiles = FeatureArrays.of_cluster(cluster, self.setting.constants).profile()
        self.prefill_mask: Masks = np.zeros((count, self.prefill_rows), np.int8)
        self.decode_mask: Masks = np.zeros((count, self.decode_rows), np.int8)
        self.prefill_mask[:, : self.prefills] = self.decode_mask[:, : self.decodes] = 1
        self.actions: Ints = np.zeros((count, 2), np.int64)
        self.desks: Ints = aligned_words(count * W.DESK_WORDS).reshape(count, W.DESK_WORDS)
        """One row per episode, columns W_… of `envs/simulator/stepping.py`."""
        self._paid = self.desks.view(np.float64)[:, W.W_REWARD]
        self.simulators: list[Simulator | None] = [None] * count
        self.seeds: Ints = np.full(count, -1, np.int64)
        """Seed of each episode's trace; −1 before the first reset."""
        self._missed: list[memoryview] = [memoryview(b"")] * count
        """Of each episode: requests whose miss became certain in the last step, as Python integers."""
        self._no_misses: Objects = np.empty(count, np.object_)
        self._no_misses.fill(())
        self._misses: Ints = np.zeros(W.MISSED_ROWS * count, np.int64)
        self._miss_words = self._misses.data
        """Rows MISSED_… of `stepping.py`."""
        self._allocate = Arena().words if count > 1 else aligned_words
        self._room = round(2 * (self.setting.scenario.rate or 0) * self.setting.window.end / PS_PER_S)
        """Requests for which memory is set aside at once: twice as many as are expected, since bursts vary."""
        self._hall = self._furnished()
        self._hall_words = self._hall.data
        self._hall_address = int(self._hall.ctypes.data)
        self.renew(tell=False)
        announce("the environment's step", W.step_all)

    def _laid_out(self) -> np.dtype[np.void]:
        """What a step brings, array by array: observations, then what is told (TOLD_… of `stepping.py`)."""
        names = ("request", "prefill", "decode")
        observed = [(name, np.float32, shape) for name, shape in zip(names, self._shapes, strict=True)]
        pad = -sum(4 * math.prod(shape) for shape in self._shapes) % 8
        told = [("reward", np.float64), ("dt", np.float64), ("now", np.float64), ("asks", np.int64), ("done", np.bool_)]
        of_told = [(name, kind, (self.count,)) for name, kind in told]
        return np.dtype([*observed, ("", np.uint8, (pad,)), *of_told])

    def __getstate__(self) -> tuple[EnvironmentConfig, int, int]:
        """What makes the same episodes again.

        Raises:
            TypeError: an episode has begun: what it is made of lies in the memory of this process.
        """
        if any(simulator is not None for simulator in self.simulators):
            raise TypeError(
                "an environment cannot be copied or pickled once an episode has begun; do it before the first reset(), "
                "or make another one from its spec"
            )
        return self.config, self.count, self.threads

    def __setstate__(self, state: tuple[EnvironmentConfig, int, int]) -> None:
        """Makes them again."""
        self.__init__(*state)  # type: ignore[misc]

    def _furnished(self) -> Ints:
        hall = np.zeros(W.HALL_WORDS, np.int64)
        hall[W.T_COUNT] = self.count
        hall[W.T_DESKS] = self.desks.ctypes.data
        hall[W.T_ACTIONS] = self.actions.ctypes.data
        hall[W.T_PROFILES] = self._profiles.ctypes.data
        hall[W.T_PREFILL_MASK] = self.prefill_mask.ctypes.data
        hall[W.T_DECODE_MASK] = self.decode_mask.ctypes.data
        hall[W.T_PREFILL_ROWS] = self.prefill_rows
        hall[W.T_DECODE_ROWS] = self.decode_rows
        hall[W.T_DECODE_BYTES] = 4 * self._shapes[-1][-1]
        hall[W.T_MISSED] = self._misses.ctypes.data
        if isinstance(self.reward, CountedReward):
            hall[W.T_WEIGHTS :] = np.array(self.reward.weights, np.float64).view(np.int64)
        return hall

    def renew(self, *, tell: bool = True) -> None:
        """Gives what the next `run` writes new arrays; the old ones stay as they are.

        `tell`: whether anything is told beside observations.
        """
        raw = np.empty(self._layout.itemsize, np.uint8)
        self._fresh = fresh = np.ndarray((), self._layout, raw)
        self.request: Float32s = fresh["request"]
        self.prefill: Float32s = fresh["prefill"]
        self.decode: Float32s = fresh["decode"]
        """Observations, with a first axis of `count`; `decode` has the mixed instances of an aggregated cluster."""
        hall, address = self._hall_words, addressof(c_char.from_buffer(raw.data))  # quicker than NumPy's
        of_prefill, of_decode, of_told = self._offsets
        hall[W.T_REQUEST] = address
        hall[W.T_PREFILL] = address + of_prefill
        hall[W.T_DECODE] = address + of_decode
        hall[W.T_TOLD] = address + of_told if tell else 0
        hall[W.T_WHOLE] = 1

    def send_all(self) -> None:
        """All pending requests are to be sent as the actions say, with the next `run`."""
        self._hall_words[W.T_SEND] = 1

    def refuse_bad_actions(self) -> None:
        """Checks the actions, as `run` does.

        Raises:
            ValueError: an action names no instance, or one that may not be assigned; nothing is to be sent then.
        """
        bad = int(W.check_all(self._hall_address))
        if bad >= 0:
            raise ValueError(self._complaint(bad))

    def begin(self, i: int, seed: int) -> None:
        """Prepares a new episode at place i; the next `run` brings it to its first decision.

        Args:
            i: which one.
            seed: of its trace, and of what is random in the predictor and in the dealing to several routers.

        Raises:
            ValueError: a request of the trace does not fit the cluster.
        """
        setting = self.setting
        asked = setting.scenario.rate, setting.window.end / PS_PER_S, seed
        simulator = self.simulators[i]
        unwritten = None if simulator is None or self._unwritten is None else self._unwritten(*asked)
        if simulator is not None and unwritten is not None:
            simulator.begin_unwritten(unwritten, partial(setting.traffic.trace, *asked), learns=self._learns)
        else:
            simulator = self._begun(simulator, setting.traffic.trace(*asked), seed)
        self._missed[i] = simulator.told[:, 1].data
        self.desks[i] = 0
        desk = self.words(i)
        desk[W.W_STATE] = simulator.address
        desk[W.W_START] = desk[W.W_LAST] = self.start
        desk[W.W_REQUEST] = -1
        desk[W.W_TASK] = W.TASK_RUN
        self.simulators[i], self.seeds[i] = simulator, seed

    def _begun(self, simulator: Simulator | None, trace: Trace, seed: int) -> Simulator:
        """A simulator that begins with this trace, the one that is given if there is one."""
        setting = self.setting
        predicted, learns = resolve_predictor(self._predictor, trace, seed)
        if simulator is None:
            simulator = Simulator(
                setting.cluster,
                trace,
                predicted=predicted,
                learns=learns,
                seed=seed,
                constants=setting.constants,
                log_ended=True,
                allocate=self._allocate,
                room=self._room,
                told=True,
                keep_records=self.count == 1 or not self._counted,
            )
        else:
            simulator.begin(trace, predicted=predicted, learns=learns, seed=seed)
        return simulator

    def run(self) -> None:
        """Does every episode's task: sends what was decided and runs to the next decision, or to the end.

        Raises:
            ValueError: an action names no instance, or one that may not be assigned; nothing was done.
            MemoryError: more requests in flight than the simulator can number.
        """
        while (full := self._step()) != 0:
            if full < 0:
                raise ValueError(self._complaint(-1 - full))
            for i in np.flatnonzero(self.desks[:, W.W_TASK] == W.TASK_RUN):
                simulator = self.simulators[i]
                if simulator is not None:
                    simulator.grow()
                    self._missed[i] = simulator.told[:, 1].data
                    self.desks[i, W.W_STATE] = simulator.address
        self._hall_words[W.T_WHOLE] = 0

    def _step(self) -> int:
        """`step_all`, by all threads."""
        if self._crew is None:
            return int(W.step_all(self._hall_address))
        bad = int(W.check_all(self._hall_address))
        if bad >= 0:
            return -1 - bad
        full = self._crew.run(W.step_part, self._hall_address, self.count)
        W.gather_all(self._hall_address)
        return full

    def close(self) -> None:
        """Ends the threads."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def check_begun(self, i: int) -> None:
        """Refuses an episode in which the agent has nothing to decide.

        Raises:
            ValueError: no request arrives in the window, or none can be routed.
        """
        if self.desks[i, W.W_STATUS] != DECIDE:
            raise ValueError(self.setting.nothing_to_decide(self.seeds.item(i)))

    def simulator(self, i: int) -> Simulator:
        """The simulator of episode i.

        Raises:
            RuntimeError: before the first reset.
        """
        found = self.simulators[i]
        if found is None:
            raise RuntimeError("no episode has begun; call reset() first")
        return found

    def words(self, i: int) -> memoryview:
        """The desk of episode i as Python integers, which is quicker than NumPy's."""
        return memoryview(self.desks[i].data)

    def masks(self, i: int) -> tuple[Masks, ...] | Masks:
        """Masks of episode i, one per pool; of mixed instances the one alone.

        Where no instance goes down or drains they are the same at every step, and may not be written to.
        """
        masks = self.prefill_mask[i].copy(), self.decode_mask[i].copy()
        for mask in masks:
            mask.flags.writeable = self.instances_change
        return masks[1] if self.aggregated else masks

    def observations(self) -> dict[str, Float32s]:
        """The observations by name, with a first axis of `count`."""
        if self.aggregated:
            return {"mixed": self.decode, "request": self.request}
        return {"decode": self.decode, "prefill": self.prefill, "request": self.request}

    @property
    def chosen(self) -> memoryview:
        """`actions` likewise."""
        return self.actions.data

    def missed_ids(self, i: int, count: int) -> tuple[int, ...]:
        """`missed` as Python integers; `count`: how many there are."""
        return tuple(self._missed[i][:count]) if count else ()

    def all_missed_ids(self) -> Objects:
        """(count,) `missed_ids` of every episode."""
        found, words, misses, count = self._no_misses.copy(), self._hall_words, self._miss_words, self.count
        once, twice, often = words[W.T_MISSED_ONCE], words[W.T_MISSED_TWICE], words[W.T_MISSED_OFTEN]
        several = once + twice + often
        if several == 0:
            return found
        ones, firsts, seconds = W.MISSED_ONE * count, W.MISSED_FIRST * count, W.MISSED_SECOND * count
        of_two = zip(misses[firsts : firsts + twice], misses[seconds : seconds + twice], strict=True)
        ids = chain(zip(misses[ones : ones + once], strict=True), of_two)
        if often:
            desks, more = self.desks, misses[once + twice : several]
            ids = chain(ids, [self.missed_ids(i, desks.item(i, W.W_MISSED)) for i in more])
        found[self._misses[:several]] = np.fromiter(ids, np.object_, several)
        return found

    def missed(self, i: int) -> Ints:
        """Requests whose miss became certain in the last step of episode i (a copy)."""
        return self.simulator(i).told[: self.desks.item(i, W.W_MISSED), 1].copy()

    def ended(self, i: int) -> Ints:
        """The agent's requests that ended in the last step of episode i (a copy)."""
        return self.simulator(i).told[: self.desks.item(i, W.W_ENDED), 0].copy()

    def outcome(self, i: int) -> Outcome:
        """What the last step of episode i brought."""
        desk, simulator = self.desks[i], self.simulator(i)
        return Outcome(
            dt=float(desk[W.W_DT] / PS_PER_S),
            missed=self.missed(i),
            ended=self.ended(i),
            met=int(desk[W.W_MET]),
            waited=float(desk[W.W_WAITED] / PS_PER_S),
            records=simulator.records,
            trace=simulator.trace,
        )

    def reward_of(self, i: int) -> float:
        """The reward of the last step of episode i."""
        if self._counted:
            return float(self._paid.item(i))
        return float(self.reward.of(self.outcome(i)))

    def told(self) -> Told:
        """What the last steps brought, each (count,): time that passed, and now (s), the request, whether it ended."""
        fresh = self._fresh
        return fresh["dt"], fresh["now"], fresh["asks"], fresh["done"]

    def rewards(self) -> Floats:
        """(count,) the rewards of the last steps."""
        if self._counted:
            return self._fresh["reward"]
        return np.array([self.reward.of(self.outcome(i)) for i in range(self.count)], np.float64)

    def totals(self, i: int) -> dict[str, float]:
        """Of episode i up to now: requests that ended, how many certainly missed, goodput of those that ended."""
        desk = self.desks[i]
        ended, met = int(desk[W.W_SUM_ENDED]), int(desk[W.W_SUM_MET])
        return {
            "requests": ended,
            "missed": int(desk[W.W_SUM_MISSED]),
            "goodput": met / ended if ended else float("nan"),
        }

    def all_totals(self, which: Bools) -> dict[str, npt.NDArray[Any]]:
        """`totals` of some episodes, each (count,), 0 for the others."""
        desks = self.desks[which]
        ended, met = desks[:, W.W_SUM_ENDED], desks[:, W.W_SUM_MET]
        with np.errstate(invalid="ignore"):
            found = {"requests": ended, "missed": desks[:, W.W_SUM_MISSED], "goodput": met / ended}
        totals = {key: np.zeros(self.count, column.dtype) for key, column in found.items()}
        for key, column in found.items():
            totals[key][which] = column
        return totals

    def _complaint(self, i: int) -> str:
        """What is wrong with the action of episode i."""
        self.desks[self.desks[:, W.W_TASK] == W.TASK_SEND, W.W_TASK] = W.TASK_NONE
        where = f"action of environment {i}" if self.count > 1 else "action"
        pools = [("mixed" if self.aggregated else "decode", self.actions.item(i, 1), self.decode_mask[i])]
        if not self.aggregated:
            pools.insert(0, ("prefill", self.actions.item(i, 0), self.prefill_mask[i]))
        return complaint(where, pools) or f"{where}: no request awaits one; call reset() first"
