"""The environment on emulated engines, in real time: its end, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from disaggroute.live.emulated_cluster import EmulatedCluster
from disaggroute.live.environment import LiveDisaggRouteEnv
from disaggroute.live.http_client import HttpClient
from disaggroute.live.play.player import Player

from .scene import inside, live, rest, threads

# --- its end --------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_an_environment_that_was_closed(make: Any) -> None:
    before = threading.active_count()
    env = make()
    _, info = env.reset(seed=0)
    env.step(env.action_space.sample(mask=info["action_mask"]))
    assert threads() == 1
    stage = live(env)._stage
    assert stage is not None

    async def left() -> tuple[int, int]:
        episode = stage.player.episode
        await stage.player.close()
        return len(asyncio.all_tasks()) - 1, sum(e.client.connections for e in episode.service.engines)  # type: ignore

    assert stage.thread.run(left()) == (0, 0)
    env.close()
    env.close()
    assert threading.active_count() == before
    with pytest.raises(ResetNeeded, match="no episode has begun"):
        env.step((0, 0))
    with pytest.raises(RuntimeError, match="no episode has begun"):
        live(env).records  # noqa: B018
    assert env.reset(seed=0)[1]["request"] == 4, "it can begin anew"


def test_a_step_that_is_interrupted_needs_a_reset(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    env.reset(seed=0)
    step, main = Player.step, threading.main_thread().ident or 0

    async def interrupted(self: Player, pair: tuple[int, int]) -> Any:
        signal.pthread_kill(main, signal.SIGINT)
        return await step(self, pair)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Player, "step", interrupted)
        while True:
            env.step((0, 0))
    with pytest.raises(ResetNeeded, match="the last step did not come to its end; call reset"):
        env.step((0, 0))
    assert env.reset(seed=1)[1]["request"] == 4


def test_nothing_is_left_of_one_that_was_forgotten(engines: EmulatedCluster) -> None:
    env = LiveDisaggRouteEnv(cluster=engines.cluster(), workload="chat", rate=20, duration_s=1.0, warmup_s=0.0)
    env.reset(seed=0)
    assert threads() == 1
    del env
    gc.collect()
    assert threads() == 0


def forked(do: Callable[[], Any]) -> int:
    """The exit code of a copy of this process in which something is done; 99 where that never ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    for _ in range(3_000):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 99


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_that_the_environment_is_not_its_own_and_goes_on(make: Any) -> None:
    env = make(requests=8, warmup_s=0.0)
    env.reset(seed=0)

    def told() -> None:
        with pytest.raises(RuntimeError, match=r"does not run: .* forked; close\(\) what it belongs to and begin anew"):
            env.step((0, 0))

    def ended() -> None:
        env.close()

    def another() -> None:
        make(requests=4, warmup_s=0.0).unwrapped._on_stage()  # no other environment of that process plays

    assert [forked(told), forked(ended), forked(another)] == [0, 0, 0]
    rest(env, {"action_mask": env.unwrapped._moment.masks})  # and here nothing has happened


def test_an_agent_that_steps_or_ends_while_it_is_shown_the_admission_harms_nothing(make: Any) -> None:
    env = make(requests=8, warmup_s=0.0)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="would wait for itself"):
        env.unwrapped.at_admission(lambda admission: env.unwrapped.at_admission(lambda again: None))
    with pytest.raises(SystemExit):
        env.unwrapped.at_admission(lambda admission: sys.exit())
    _, _, _, _, info = env.step((0, 0))
    rest(env, info)


def test_an_episode_left_early_leaves_no_request_at_the_engines(make: Any) -> None:
    env = make(output=200)
    for seed in (0, 1):
        _, info = env.reset(seed=seed)
        for _ in range(3):
            _, _, _, _, info = env.step(env.action_space.sample(mask=info["action_mask"]))
    env.reset(seed=2)  # waits until engines are idle
    assert inside(env, lambda service: service.router.in_flight) <= 4


def test_it_can_be_copied_and_pickled_while_it_does_not_play(make: Any) -> None:
    env = make().unwrapped
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.observation_space == env.observation_space and other.config == env.config
    env.reset(seed=0)
    with pytest.raises(TypeError, match="a live environment cannot be copied or pickled while it plays"):
        copy.deepcopy(env)
    env.close()
    copy.deepcopy(env)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_engines_that_another_environment_plays_are_refused(make: Any) -> None:
    one, other = make(), make()
    one.reset(seed=0)
    with pytest.raises(ValueError, match="is played by another environment of this process; close"):
        other.reset(seed=0)
    one.close()
    other.reset(seed=0)


def test_engines_that_somebody_else_uses_are_refused(make: Any, engines: EmulatedCluster) -> None:
    env = make(cluster=engines.cluster(lease_s=1), rest_s=0.0)

    async def with_load() -> None:
        client = HttpClient(engines.engines[2].url)
        body = b'{"model": "%b", "prompt": [5], "max_tokens": 4000, "ignore_eos": true, "stream": true}'
        response = await client.open("POST", "/v1/completions", body % engines.model.encode())
        try:
            with pytest.raises(RuntimeError, match=r"decode/1 .* is not idle after 0\.1 s: 1 requests running"):
                await asyncio.to_thread(env.reset, seed=0)
        finally:
            response.abort()
            await client.close()

    asyncio.run(with_load())
    env.close()
    make(cluster=engines.cluster()).reset(seed=0)


def test_requests_that_an_engine_could_not_take_are_left_out_and_that_is_said(make: Any, engines: Any) -> None:
    env = make(cluster=engines.cluster(max_model_len=200), workload="chat", rate=50, duration_s=2.0, warmup_s=0.0)
    said = r"chat-.*, seed 0: \d+ of \d+ requests \(.*%\) do not fit the engines and are left out"
    with pytest.warns(UserWarning, match=said):
        env.reset(seed=0)
    trace = live(env).trace
    assert len(trace) > 0 and (trace.prompt + trace.output <= 200).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        env.reset(seed=1)


def test_a_window_without_a_request_is_refused(make: Any) -> None:
    env = make(requests=4, warmup_s=0.9, duration_s=0.01)
    with pytest.raises(ValueError, match=r"no request awaits a decision between 0\.9 s and 0\.91 s; raise the rate"):
        env.reset(seed=0)
    assert live(env)._stage is not None and live(env)._stage.player.episode is None  # type: ignore[union-attr]


def test_bad_actions_seeds_and_options_are_refused(make: Any) -> None:
    env = make()
    with pytest.raises(ResetNeeded, match="no episode has begun"):
        env.step((0, 0))
    with pytest.raises(ValueError, match="seed is -1"):
        env.reset(seed=-1)
    with pytest.raises(ValueError, match=r"options is .*; reset takes none"):
        env.reset(options={"a": 1})
    env.reset(seed=0)
    for action in (0, (0, 1, 2), "ab", (0.5, 0), (True, 0), None):
        with pytest.raises(ValueError, match=r"it must be two integers, \(prefill, decode\), of the action space"):
            env.step(action)
    outside = {(1, 0): "prefill instance is 1; allowed are 0 to 0", (0, -1): "decode instance is -1; allowed are 0 to"}
    for action, sentence in outside.items():
        with pytest.raises(ValueError, match=sentence):
            env.step(action)
    env.step((0, 0))
