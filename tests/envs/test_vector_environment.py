"""The native vector environment is as many single ones, bit for bit: `SyncVectorEnv` over single ones is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

import disaggroute
from disaggroute.envs import rewards
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.vector_environment import DisaggRouteVectorEnv

from .environments import ARGUMENTS, SHORT, Arguments

NUM_ENVS = 3
MODES = [mode.value for mode in AutoresetMode]
REPRESENTATIVE = ("as it comes", "aggregated, padded, failing", "kills reroute", "padded", "latency, failing")


class Squared(rewards.Reward):
    """Minus the square of the misses, and a bonus for each that ended: needs the outcome itself."""

    name = "squared"

    def of(self, outcome: rewards.Outcome) -> float:
        ended = outcome.records[outcome.ended]
        return -float(len(outcome.missed) ** 2) + 1e-3 * float((ended["end"] - ended["arrival"]).sum() % 1009)


@pytest.fixture
def squared(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(rewards._classes, "squared", Squared)
    return "squared"


class Pair:
    """A native vector environment and its oracle, which are driven alike and must tell the same."""

    def __init__(self, arguments: Arguments, mode: str, num_envs: int = NUM_ENVS) -> None:
        self.native: Any = gym.make_vec(disaggroute.ENVIRONMENT, num_envs, autoreset_mode=mode, **arguments)
        kwargs = {"autoreset_mode": mode}
        self.oracle: Any = gym.make_vec(disaggroute.ENVIRONMENT, num_envs, "sync", vector_kwargs=kwargs, **arguments)
        assert isinstance(self.native, DisaggRouteVectorEnv)
        self.rng = np.random.default_rng(0)
        self.ended = np.zeros(num_envs, np.bool_)
        self.keeps = mode != "SameStep"
        self.reset(seed=0)  # so that what is drawn for a seed of None is the same in both

    def reset(self, seed: Any = None, mask: npt.NDArray[np.bool_] | None = None) -> None:
        options = [None if mask is None else {"reset_mask": mask} for _ in range(2)]  # gymnasium empties its own
        native = self.native.reset(seed=seed, options=options[0])
        oracle = self.oracle.reset(seed=seed, options=options[1])
        assert data_equivalence(native, oracle, exact=True)
        self.ended &= False if mask is None else ~mask

    def step(self) -> Any:
        """A step with random actions that the masks allow; where an episode has ended the action means nothing."""
        masks = self.native.action_masks()
        assert (masks == np.stack(self.oracle.call("action_masks"))).all()
        pools = self.native.single_action_space
        sizes = [pools.n] if isinstance(pools, gym.spaces.Discrete) else pools.nvec
        columns = [
            np.argmax(self.rng.random(part.shape) * part, axis=1)
            for part in np.split(masks, np.cumsum(sizes)[:-1], axis=1)
        ]
        actions = np.stack(columns, axis=1) if len(sizes) > 1 else columns[0]
        actions[self.ended] = 99
        native, oracle = self.native.step(actions), self.oracle.step(actions)
        assert data_equivalence(native, oracle, exact=True)
        assert native[0] in self.native.observation_space
        self.ended = native[2] & self.keeps  # what has ended waits for the next step or a reset
        return native


def seeds(count: int = NUM_ENVS) -> Iterator[list[int | None]]:
    """Lists of seeds, some of which are None."""
    rng = np.random.default_rng(7)
    while True:
        yield [None if rng.random() < 0.4 else int(rng.integers(10_000)) for _ in range(count)]


def test_both_have_the_same_spaces_and_metadata() -> None:
    for arguments in ARGUMENTS.values():
        pair = Pair(arguments, "NextStep", 2)
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(pair.native, name) == getattr(pair.oracle, name)
        assert pair.native.metadata == pair.oracle.metadata
        assert pair.native.num_envs == pair.oracle.num_envs == 2


@pytest.mark.parametrize("setting", ARGUMENTS)
def test_in_every_setting_episode_after_episode(setting: str) -> None:
    pair = Pair(ARGUMENTS[setting], "NextStep", 2)
    pair.reset(seed=5)
    ends = 0
    while ends < 3:
        ends += int(pair.step()[2].sum())


@pytest.mark.parametrize("setting", REPRESENTATIVE)
def test_mode_same_step_tells_the_end_and_the_next_beginning_at_once(setting: str) -> None:
    pair = Pair(ARGUMENTS[setting], "SameStep")
    pair.reset(seed=[3, 4, 4])
    ends = 0
    while ends < 4:
        observations, _, terminations, _, infos = pair.step()
        assert ("final_obs" in infos) == terminations.any()
        for i in np.flatnonzero(terminations):
            assert not any(value.any() for value in infos["final_obs"][i].values())
            assert infos["final_info"]["request"][i] == -1 and infos["request"][i] >= 0
            assert observations["request"][i].any()
        ends += int(terminations.sum())


@pytest.mark.parametrize("setting", REPRESENTATIVE)
def test_mode_disabled_waits_for_a_reset_of_what_has_ended(setting: str) -> None:
    pair = Pair(ARGUMENTS[setting], "Disabled")
    drawn = seeds()
    pair.reset(seed=next(drawn))
    ends = 0
    while ends < 5:
        pair.step()
        if pair.ended.any():
            ends += int(pair.ended.sum())
            pair.reset(seed=next(drawn), mask=pair.ended.copy())


def test_a_reset_with_a_mask_begins_some_anew_in_the_middle_of_others() -> None:
    for mode in MODES:
        pair = Pair(SHORT, mode)
        pair.reset(seed=[1, None, 3])
        drawn, rng = seeds(), np.random.default_rng(1)
        for _ in range(8):
            for _ in range(5):
                if mode != "Disabled" or not pair.ended.any():
                    pair.step()
            mask = pair.ended | (rng.random(NUM_ENVS) < 0.5)
            mask[int(rng.integers(NUM_ENVS))] = True
            pair.reset(seed=next(drawn), mask=mask)


def test_an_environment_that_has_not_begun_has_no_observation_yet() -> None:
    env, whole = DisaggRouteVectorEnv(NUM_ENVS, **SHORT), DisaggRouteVectorEnv(NUM_ENVS, **SHORT)
    observations, infos = env.reset(seed=[4, 5, 6], options={"reset_mask": np.array([True, False, False])})
    assert not any(value[1:].any() for value in observations.values())
    assert infos["_request"].tolist() == [True, False, False]
    told = env.reset(seed=[4, 5, 6], options={"reset_mask": np.array([False, True, True])})
    assert data_equivalence(told[0], whole.reset(seed=[4, 5, 6])[0], exact=True)


@pytest.mark.parametrize("seed", [0, 17, [3, 3, 3], [8, None, 1], (1, 2, 3)])
def test_every_form_of_seed(seed: Any) -> None:
    pair = Pair(SHORT, "NextStep")
    pair.reset(seed=seed)
    pair.reset()
    pair.step()


@pytest.mark.parametrize("seed", [np.int64(4), np.array([1, 2, 3]), range(3)])
def test_seeds_in_other_types_mean_their_numbers(seed: Any) -> None:
    env = DisaggRouteVectorEnv(NUM_ENVS, **SHORT)
    as_python = [int(s) for s in seed] if np.ndim(seed) else int(seed)
    assert data_equivalence(env.reset(seed=seed), env.reset(seed=as_python), exact=True)


def test_a_reward_in_python(squared: str) -> None:
    for setting in ("as it comes", "kills reroute"):
        pair = Pair(ARGUMENTS[setting] | {"reward": squared}, "SameStep")
        pair.reset(seed=1)
        paid = [pair.step()[1] for _ in range(250)]
        assert len({reward for row in paid for reward in row}) > 3


def test_times_beyond_2_to_the_53_ps() -> None:
    # 10,000 s; float64 no longer holds every picosecond.
    pair = Pair(SHORT | {"warmup_s": 10_000, "duration_s": 20, "rate": 0.5, "reward": "latency"}, "NextStep")
    pair.reset(seed=0)
    for _ in range(20):
        pair.step()


def test_one_environment_and_many() -> None:
    for count in (1, 17):
        pair = Pair(SHORT | {"duration_s": 1.0, "warmup_s": 0.5, "rate": 30}, "SameStep", count)
        for _ in range(40):
            pair.step()


def test_more_requests_in_flight_than_a_simulator_first_has_room_for() -> None:
    pair = Pair({"config": "chat", "warmup_s": 0.0, "duration_s": 2.0, "rate": 1000}, "NextStep", 2)
    pair.reset(seed=4)
    most = 0
    while not pair.ended.any():
        pair.step()
        most = max(most, pair.oracle.envs[0].unwrapped.simulator.in_flight)
    assert most > 1024


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_asynchronous_environments_are_the_same_too(context: str) -> None:
    arguments = SHORT | {"duration_s": 1.0, "warmup_s": 0.5, "rate": 30}
    kwargs = {"context": context}
    others = gym.make_vec(disaggroute.ENVIRONMENT, 2, "async", vector_kwargs=kwargs, **arguments)
    try:
        native = gym.make_vec(disaggroute.ENVIRONMENT, 2, **arguments)
        assert data_equivalence(native.reset(seed=2), others.reset(seed=2), exact=True)
        for k in range(100):
            actions = np.array([[k % 2, k % 4], [(k + 1) % 2, 0]])
            assert data_equivalence(native.step(actions), others.step(actions), exact=True)
    finally:
        others.close()


def test_the_spec_makes_an_equal_environment() -> None:
    made = gym.make_vec(disaggroute.ENVIRONMENT, 2, autoreset_mode=AutoresetMode.SAME_STEP, **SHORT)
    assert made.spec is not None
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(made.spec.to_json()))
    assert isinstance(again, DisaggRouteVectorEnv) and again.num_envs == 2
    assert again.autoreset_mode is AutoresetMode.SAME_STEP and again.config == made.config  # type: ignore[attr-defined]
    assert data_equivalence(made.reset(seed=3), again.reset(seed=3), exact=True)


@pytest.mark.parametrize("setting", ["as it comes", "kills reroute", "aggregated, padded, failing"])
def test_what_was_handed_out_is_the_users_own(setting: str) -> None:
    env, twin = (DisaggRouteVectorEnv(2, autoreset_mode="SameStep", **ARGUMENTS[setting]) for _ in range(2))
    told, kept = env.reset(seed=1), twin.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(200):
        spoil(told)
        masks = twin.action_masks()
        rows, first = masks.shape[1], twin.single_observation_space.spaces.get("prefill")  # type: ignore[attr-defined]
        cut = 0 if first is None else first.shape[0]
        decode = np.argmax(rng.random((2, rows - cut)) * masks[:, cut:], axis=1)
        actions = decode if not cut else np.stack([np.argmax(masks[:, :cut], axis=1), decode], axis=1)
        told, kept = env.step(actions.copy()), twin.step(actions)
        assert data_equivalence(told, kept, exact=True)


def spoil(data: Any) -> None:
    """Writes into every array that may be written to."""
    if isinstance(data, dict):
        for value in data.values():
            spoil(value)
    elif isinstance(data, tuple):
        for value in data:
            spoil(value)
    elif isinstance(data, np.ndarray) and data.dtype == object:
        for value in data:
            spoil(value)
        data[:] = "spoilt"
    elif isinstance(data, np.ndarray) and data.flags.writeable:
        data[...] = 77


def test_gymnasiums_vector_wrappers_work() -> None:
    env: Any = DisaggRouteVectorEnv(2, **SHORT)
    env = gym.wrappers.vector.RecordEpisodeStatistics(env)
    env = gym.wrappers.vector.FlattenObservation(env)
    observations, _ = env.reset(seed=0)
    assert observations in env.observation_space
    returns, infos = np.zeros(2), {}
    while "episode" not in infos:
        observations, reward, *_, infos = env.step(np.zeros((2, 2), np.int64))
        assert observations in env.observation_space
        returns += reward
    ended = infos["_episode"]
    assert ended.any() and (infos["episode"]["r"][ended] == returns[ended]).all()


def test_a_single_environment_of_the_same_seed_tells_the_same() -> None:
    vector, single = DisaggRouteVectorEnv(2, **SHORT), DisaggRouteEnv(**SHORT)
    observations, _ = vector.reset(seed=[8, 9])
    observation, _ = single.reset(seed=9)
    terminated = False
    while not terminated:
        for key, value in observation.items():
            assert (observations[key][1] == value).all()
        observations, rewards_, *_ = vector.step(np.zeros((2, 2), np.int64))
        observation, reward, terminated, _, _ = single.step((0, 0))
        assert rewards_[1] == reward


def test_the_marks_of_the_end_are_the_users_own_and_serve_as_a_reset_mask() -> None:
    env = DisaggRouteVectorEnv(3, autoreset_mode="Disabled", **SHORT)
    env.reset(seed=0)
    actions = np.zeros((3, 2), np.int64)
    for _ in range(10_000):
        _, _, ended, _, _ = env.step(actions)
        if ended.any():
            break
    before = ended.copy()
    _, infos = env.reset(options={"reset_mask": ended})
    assert before.any() and np.array_equal(ended, before)
    assert np.array_equal(infos["_request"], before) and (infos["request"][before] >= 0).all()
    env.step(actions)


def test_misses_of_environments_with_one_two_and_more_are_all_told() -> None:
    env = DisaggRouteVectorEnv(4, **ARGUMENTS["overloaded"])
    env.reset(seed=1)
    counts: set[int] = set()
    for _ in range(2_000):
        told = env.step(np.zeros((4, 2), np.int64))[4]["missed"]
        for i, missed in enumerate(told):
            assert missed == tuple(env._episodes.missed(i).tolist())
            counts.add(min(len(missed), 3))
        if counts == {0, 1, 2, 3}:
            return
    pytest.fail(f"only steps with {counts} misses were seen")

