"""The environment on emulated engines, in real time: episodes, what may happen to engines, wrappers and checkers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation

import disaggroute
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.feature_arrays import FeatureArrays
from disaggroute.envs.records import FAILED, FINISHED, REJECTED
from disaggroute.envs.simulator.router_state import RouterState
from disaggroute.envs.wrappers import DiscreteActions
from disaggroute.live import router as live_router
from disaggroute.live.emulated_cluster import EmulatedCluster
from disaggroute.live.http_client import HttpClient
from disaggroute.live.play.agent_policy import AgentPolicy
from disaggroute.policies.agent import PolicyAgent

from .scene import KEYS, NO_TIME_S, SCALE, inside, live, rest

# --- an episode -----------------------------------------------------------------------------------------------------


def test_an_episode_has_the_spaces_and_infos_of_the_simulated_one(make: Any) -> None:
    env = make()
    simulated = gym.make(disaggroute.ENVIRONMENT, config="mixed-bursty-a40-1p2d")
    assert env.observation_space == simulated.observation_space and env.action_space == simulated.action_space
    observation, info = env.reset(seed=5)
    assert observation in env.observation_space and set(info) == KEYS and info["trace_seed"] == 5
    assert info["request"] == 4 and info["now"] >= 1.0 and info["dt"] == pytest.approx(info["now"] - 1.0)
    requests, now, terminated = [info["request"]], info["now"], False
    while not terminated:
        observation, reward, terminated, _, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        assert observation in env.observation_space and isinstance(reward, float)
        assert set(info) == KEYS | ({"outcome"} if terminated else set())
        assert info["now"] - now == pytest.approx(info["dt"])
        now = info["now"]
        requests.append(info["request"])
    assert requests == [*range(4, 16), -1]
    assert not any(value.any() for value in observation.values())
    assert info["outcome"] == {"requests": 12, "missed": 0, "goodput": 1.0}
    records = live(env).records
    assert (records["status"] == FINISHED).all() and (records["generated"] == 4).all()
    assert info["now"] == records["end"].max() / PS_PER_S
    for earlier, later in (("arrival", "prefill_start"), ("prefill_start", "prefill_end"), ("first_token", "end")):
        assert (records[earlier] <= records[later]).all()
    with pytest.raises(ResetNeeded, match="the episode has ended; call reset"):
        env.step((0, 0))


def test_the_agent_decides_where_requests_of_its_window_go(make: Any) -> None:
    env = make()
    _, info = env.reset(seed=0)
    chosen = {}
    terminated = False
    while not terminated:
        chosen[info["request"]] = info["request"] // 2 % 2
        _, _, terminated, _, info = env.step((0, chosen[info["request"]]))
    assert {k: live(env).records["decode"][k] for k in chosen} == chosen


@pytest.mark.parametrize("reward", ["slo-miss", "goodput", "latency"])
def test_the_return_is_what_the_records_say(make: Any, reward: str) -> None:
    env = make(ttft_s=0.2, output=3, reward=reward)
    _, info = env.reset(seed=0)
    total, infos = rest(env, info)
    records, trace = live(env).records[4:], live(env).trace
    met = (records["status"] == FINISHED) & (records["first_token"] - records["arrival"] <= trace.ttft_target[4:])
    met &= records["last_token"] - records["first_token"] <= 2 * trace.tpot_target[4:]
    told = sorted(k for each in infos for k in each["missed"])
    assert told == (4 + np.flatnonzero(~met)).tolist()
    waited = (records["end"] - records["arrival"]).sum() / PS_PER_S
    expected = {"slo-miss": -(~met).sum(), "goodput": met.sum(), "latency": -waited}
    assert total == pytest.approx(expected[reward])
    assert infos[-1]["outcome"]["goodput"] == met.mean()


def test_two_resets_with_one_seed_give_the_same_trace_and_others_another(make: Any) -> None:
    env = make(workload="chat", rate=20, duration_s=2.0, warmup_s=0.0)
    traces = []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        traces.append(live(env).trace.arrival.tolist())
    assert traces[0] == traces[1] != traces[2]
    assert env.spec is not None and env.spec.nondeterministic


def test_what_the_agent_sees_is_what_a_router_state_shows_that_was_told_the_same(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(RouterState):
        """Keeps what it was told."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def noted(state: Noted) -> tuple[Noted, list[Any], Any]:
        return state, list(state.told), state.snapshot()

    def noting(name: str) -> Callable[..., Any]:
        def call(self: Noted, *arguments: Any, **named: Any) -> Any:
            self.told.append((name, arguments, named))
            return getattr(RouterState, name)(self, *arguments, **named)

        return call

    events = ("ask", "send", "withdraw", "prefill_done", "first_token", "token", "finished", "failed")
    for name in (*events, "polled", "poll_time", "set_open"):
        setattr(Noted, name, noting(name))
    monkeypatch.setattr(live_router, "RouterState", Noted)

    env = make(pad_to=[2, 3])
    observation, info = env.reset(seed=0)
    seen, terminated = {}, False
    while not terminated:
        seen[info["request"]] = observation
        observation, _, terminated, _, info = env.step((0, info["request"] % 2))
    # At one moment: engines are polled on.
    state, told, final = inside(env, lambda service: noted(service.router.state))
    names = [name for name, _, _ in told]
    assert {"ask", "send", "withdraw", "prefill_done", "first_token", "token", "finished", "polled"} <= set(names)

    again = RouterState(state.cluster, state.constants, learns=state.learns)
    features = FeatureArrays.of_cluster(state.cluster, state.constants)
    shown = 0
    for k, (name, arguments, named) in enumerate(told):
        last = again.last_admission
        came = getattr(again, name)(*arguments, **named)
        if name == "ask" and names[k + 1] == "withdraw":
            expected = features.of_admission(came, last)
            mine = seen[named["index"]]
            for key, rows in expected.items():
                assert (mine[key][: len(rows)] == rows).all(), (named["index"], key)
                assert key == "request" or not mine[key][len(rows) :].any(), "padding is zero"
            shown += 1
    assert shown == len(seen) == 12

    unasked = RouterState(state.cluster, state.constants, learns=state.learns)
    for k, (name, arguments, named) in enumerate(told):
        looked = (name == "ask" and names[k + 1] == "withdraw") or name == "withdraw"
        if not looked:
            getattr(unasked, name)(*arguments, **named)
    assert unasked.snapshot() == again.snapshot() == final, "to look on changes nothing"


def test_an_agent_that_thinks_for_long_makes_requests_wait_and_they_queue(make: Any) -> None:
    env = make()
    _, info = env.reset(seed=0)
    slow = info["request"]
    pause = 1.0  # s of the engines: four requests arrive meanwhile
    time.sleep(pause * SCALE)
    _, _, _, _, info = env.step((0, 0))
    assert info["dt"] >= pause
    rest(env, info)
    records = live(env).records
    ttft = (records["first_token"] - records["arrival"]) / PS_PER_S
    assert ttft[slow] >= pause and ttft[slow + 1] >= pause - 0.25 - 0.01
    assert records["prefill_start"][slow + 1] >= records["prefill_start"][slow]


def test_a_miss_becomes_certain_while_the_request_waits_for_the_agent(make: Any) -> None:
    env = make(ttft_s=NO_TIME_S)
    _, info = env.reset(seed=0)
    slow = info["request"]
    time.sleep(0.5 * SCALE)
    _, reward, _, _, info = env.step((0, 0))
    assert slow in info["missed"] and slow + 1 in info["missed"] and reward == -len(info["missed"])
    total, infos = rest(env, info)
    assert total + reward == -12 and infos[-1]["outcome"] == {"requests": 12, "missed": 12, "goodput": 0.0}


@pytest.mark.parametrize("policy", ["round-robin", "marginal-cost"])
def test_a_policy_plays(make: Any, policy: str) -> None:
    env = make()
    total, outcome = PolicyAgent(policy, env).play(seed=1)
    assert (total, outcome) == (0.0, {"requests": 12, "missed": 0, "goodput": 1.0})
    decode = live(env).records["decode"][4:]
    assert policy != "round-robin" or decode.tolist() == [0, 1] * 6


def test_a_static_predictor_says_what_is_expected_and_others_learn(make: Any) -> None:
    for predictor, predicted in (("oracle", {4}), ("constant(99)", {99}), ("bucket", {4, 128})):
        env = make(predictor=predictor)
        _, info = env.reset(seed=0)
        rest(env, info)
        assert set(live(env).records["predicted"].tolist()) <= predicted
        env.close()


def test_what_the_agent_says_counts_however_long_it_takes_to_pass_it_on(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = AgentPolicy.route

    def slowly(self: AgentPolicy, admission: Any) -> tuple[int, int]:
        time.sleep(0.02)  # as on a machine that is busy
        return route(self, admission)

    monkeypatch.setattr(AgentPolicy, "route", slowly)
    env = make(requests=8)
    env.reset(seed=0)
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step((0, 1))
        assert info["fallback"] is None
    assert set(live(env).records["decode"][4:].tolist()) == {1}


# --- what may happen to engines -------------------------------------------------------------------------------------


def test_a_pair_that_goes_away_after_the_observation_is_replaced_and_info_says_so(make: Any) -> None:
    env = make()
    _, info = env.reset(seed=0)
    first = info["request"]
    inside(env, lambda service: service.drain(service.engines[1]))
    _, _, _, _, info = env.step((0, 0))
    assert info["fallback"] == "unavailable"
    assert [mask.tolist() for mask in info["action_mask"]] == [[1], [0, 1]]
    assert env.unwrapped.action_masks().tolist() == [True, False, True]
    with pytest.raises(ValueError, match=r"action: decode instance 0 is masked .* allowed are 1"):
        env.step((0, 0))
    inside(env, lambda service: service.drain(service.engines[1], False))
    _, _, _, _, info = env.step((0, 1))
    assert info["fallback"] is None and info["action_mask"][1].tolist() == [1, 1]
    rest(env, info)
    assert live(env).records["decode"][first] == 1


def test_a_policy_picks_what_the_last_observation_allows_whatever_has_happened_since(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    inside(env, lambda service: service.drain(service.engines[0]))
    env.unwrapped.at_admission(lambda admission: None)  # the prefill engine is gone, and the agent cannot know
    assert inside(env, lambda service: service.router.state.is_open(0)) is False
    inside(env, lambda service: service.drain(service.engines[0], False))


def test_with_no_instance_available_requests_fail_without_a_step(make: Any) -> None:
    env = make()
    _, info = env.reset(seed=0)
    inside(env, lambda service: service.drain(service.engines[0]))
    _, reward, terminated, _, info = env.step((0, 0))
    assert terminated and reward == -12 and info["outcome"] == {"requests": 12, "missed": 12, "goodput": 0.0}
    assert (live(env).records["status"][4:] == REJECTED).all()


def test_an_engine_that_dies_in_the_middle_costs_its_requests_and_no_more(make: Any, engines: EmulatedCluster) -> None:
    env = make(requests=40, output=12)
    _, info = env.reset(seed=0)
    infos, terminated = [], False
    try:
        while not terminated:
            if info["request"] == 10:
                engines.kill("decode/1")
            decode = 1 if info["action_mask"][1][1] else 0
            _, _, terminated, _, info = env.step((0, decode))
            infos.append(info)
        records = live(env).records
        assert info["outcome"]["requests"] == 36 and (records["end"] >= 0).all()
        assert any(not each["action_mask"][1][1] for each in infos), "it was masked in the end"
        done = records["status"] == FINISHED
        assert done[:4].all() and set(records["status"][~done]) <= {FAILED}
        assert info["outcome"]["missed"] == (~done).sum()
        assert records["decode"][done][-1] == 0 and records["reroutes"].max() <= 1
    finally:
        engines.restart("decode/1")


def test_an_engine_that_cannot_empty_its_cache_is_told_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = HttpClient.fetch

    async def without(self: HttpClient, method: str, path: str, *arguments: Any, **named: Any) -> Any:
        there = "/nowhere" if path == "/reset_prefix_cache" else path
        return await fetch(self, method, there, *arguments, **named)

    monkeypatch.setattr(HttpClient, "fetch", without)
    env = make()
    with pytest.warns(UserWarning, match=r"prefill/0 .* cannot reset its prefix cache \(it answers 404\)") as told:
        env.reset(seed=0)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset(seed=0)


def test_a_trace_that_comes_again_has_other_prompts(make: Any) -> None:
    env, prompts = make(), []
    for _ in range(2):
        _, info = env.reset(seed=0)
        prompts.append(inside(env, lambda _: live(env)._stage.player.episode._due[0][1].request.body["prompt"]))  # type: ignore
        assert len(prompts[-1]) == live(env).trace.prompt[info["request"]]
    assert prompts[0] != prompts[1]


def test_the_targets_are_those_of_the_cluster_s_file(make: Any, engines: EmulatedCluster) -> None:
    slo = {"tight": {"ttft_s": 3, "tpot_s": 1}, "loose": {"ttft_s": 5, "tpot_s": 2}}
    env = make(cluster=engines.cluster(slo=slo), workload="chat", rate=20, duration_s=1.0, warmup_s=0.0)
    env.reset(seed=0)
    trace = live(env).trace
    assert set(trace.ttft_target[trace.slo == 0]) == {3 * PS_PER_S}
    assert set(trace.tpot_target) == {PS_PER_S, 2 * PS_PER_S}
    asked = env.unwrapped.at_admission(lambda admission: (admission.ttft_target, admission.tpot_target))
    assert asked == (trace.ttft_target[0], trace.tpot_target[0])


# --- wrappers and checkers ------------------------------------------------------------------------------------------


def test_gymnasiums_checker_finds_nothing(make: Any) -> None:
    env = make(requests=6, warmup_s=0.0).unwrapped
    env.action_space.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


def test_the_spec_goes_to_json_and_back(make: Any) -> None:
    env = make(requests=6, warmup_s=0.0, pad_to=(2, 4))
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    try:
        assert again.observation_space == env.observation_space and live(again).cluster == live(env).cluster
        observation, info = again.reset(seed=0)
        assert observation in again.observation_space
        assert [mask.tolist() for mask in info["action_mask"]] == [[1, 0], [1, 1, 0, 0]]
        with pytest.raises(ValueError, match="prefill instance 1 is masked"):
            again.step((1, 0))
    finally:
        again.close()


def test_wrappers_work_around_it(make: Any) -> None:
    env = FlattenObservation(DiscreteActions(make(requests=6, warmup_s=0.0)))
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space and info["action_mask"].tolist() == [1, 1]
    for action in (1, 0, 0, 1, 1, 0):
        observation, _, terminated, _, info = env.step(action)
        assert observation in env.observation_space
    assert terminated and live(env).records["decode"].tolist() == [1, 0, 0, 1, 1, 0]


@pytest.mark.long
def test_stable_baselines_steps_it(make: Any) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    venv = vec_env.DummyVecEnv([lambda: make(requests=6, warmup_s=0.0)])
    venv.reset()
    done = False
    while not done:
        _, _, dones, infos = venv.step(np.array([[0, 1]]))
        done = bool(dones[0])
    assert infos[0]["outcome"]["requests"] == 6 and "terminal_observation" in infos[0]
    venv.close()
