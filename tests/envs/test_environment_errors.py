"""Whatever is wrong is told in one sentence, and nothing has been done by then."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

import disaggroute
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.environment_config import EnvironmentConfig
from disaggroute.envs.vector_environment import DisaggRouteVectorEnv

from .environments import SHORT, TROUBLE, Arguments, events, pools, rollout

QUIET: Arguments = {"config": "document", "warmup_s": 0.0, "duration_s": 2.0}
"""with seed 2 nothing arrives in the window, with seed 1 something does."""

KNOWN = ", ".join(sorted(EnvironmentConfig.model_fields))
PAIR = "it must be two integers, (prefill, decode), of the action space"
SINGLE = "it must be an integer of the action space"


def refused(sentence: str, call: Callable[[], Any], error: type[Exception] = ValueError) -> None:
    """Calls, and expects exactly this sentence (… stands for anything)."""
    pattern = ".*".join(re.escape(part) for part in sentence.split("…"))
    with pytest.raises(error) as caught:
        call()
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


CONFIGURATIONS: list[tuple[Arguments, str]] = [
    ({"config": "mixed-busty"}, "unknown environment 'mixed-busty'; nearest: mixed-bursty…; a path ends in .yaml"),
    ({"config": 5}, "config is 5; it must be a name, a path, a mapping or a model"),
    ({"config": None}, "config is None; it must be a name, a path, a mapping or a model"),
    ({"config": "none.yaml"}, "none.yaml: the file cannot be read (No such file or directory)"),
    ({"config": {"x": 1}}, f"environment: unknown field 'x'; allowed: {KNOWN}"),
    ({"wrkload": "chat"}, "mixed-bursty-a40: unknown field 'wrkload'; nearest: workload"),
    ({"workload": "chta"}, "unknown workload 'chta'; nearest: chat; nor is it a file"),
    ({"profile": "a40-qwen2.5-3"}, "2p4d-a40-qwen2.5-3: prefill: unknown profile 'a40-qwen2.5-3'; nearest: a40-qw…"),
    ({"topology": "2P"}, "topology is '2P'; it must read like 2P4D (prefill and decode instances) or 4M (mixed)"),
    ({"cluster": "2p4d-a4"}, "unknown cluster '2p4d-a4'; nearest: 2p4d-a40…; a path ends in .yaml"),
    ({"cluster": {"prefil": []}}, "mixed-bursty-a40: unknown field of cluster 'prefil'; nearest: prefill…"),
    ({"cluster": pools(routers=0)}, "mixed-bursty-a40: cluster.routers is 0; it must be greater than or equal to 1"),
    (
        {"cluster": pools(events=events((1, "decode/7", "kill")))},
        "mixed-bursty-a40: cluster: instance 'decode/7' does not exist; allowed: prefill/0 to prefill/1, …",
    ),
    (
        {"cluster": "2p4d-a40", "topology": "2P4D"},
        "mixed-bursty-a40: topology and cluster both describe the cluster; give one",
    ),
    ({"rate": 0}, "mixed-bursty-a40: rate is 0; it must be greater than 0"),
    ({"rate": float("nan")}, "mixed-bursty-a40: rate is nan; it must be a finite number"),
    (
        {"topology": "3P5D"},
        "rate is missing, and no saturation rate is stored for mixed-bursty-a40-3p5d-a40-qwen2.5-3b; give rate=… in "
        "requests/s (`disaggroute saturate` finds one)",
    ),
    ({"duration_s": 0}, "mixed-bursty-a40: duration_s is 0; it must be greater than 0"),
    ({"warmup_s": -1}, "mixed-bursty-a40: warmup_s is -1; it must be greater than or equal to 0"),
    ({"predictor": "buckt"}, "unknown predictor 'buckt'; nearest: bucket"),
    ({"observability": "all"}, "mixed-bursty-a40: observability is 'all'; it must be 'router' or 'full'"),
    ({"reward": "slo_miss"}, "mixed-bursty-a40: reward: unknown reward 'slo_miss'; nearest: slo-miss"),
    ({"reward": None}, "mixed-bursty-a40: reward is None; it must be a valid string"),
    ({"pad_to": 4}, "mixed-bursty-a40: pad_to is 4; it must be a valid list"),
    *(
        (
            {"pad_to": pad_to},
            f"pad_to is {pad_to}; it must hold 2 numbers (prefill, decode), at least [2, 4] and at most 4096 each",
        )
        for pad_to in ([1, 4], [2, 3], [4], [2, 4, 0], [2, 5000])
    ),
    (
        {"topology": "4M", "rate": 9, "pad_to": [2, 4]},
        "pad_to is [2, 4]; it must hold 1 number (mixed), at least [4] and at most 4096 each",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), CONFIGURATIONS, ids=lambda value: str(value)[:40])
def test_a_bad_configuration_is_one_sentence_however_the_environment_is_made(
    arguments: Arguments, sentence: str
) -> None:
    refused(sentence, lambda: gym.make(disaggroute.ENVIRONMENT, **SHORT | arguments))
    refused(sentence, lambda: gym.make_vec(disaggroute.ENVIRONMENT, 2, **SHORT | arguments))
    refused(sentence, lambda: DisaggRouteEnv(**SHORT | arguments))


def test_a_file_with_a_bad_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload: chat\nreward: goodputt\n")
    refused(f"{path}: reward: unknown reward 'goodputt'; nearest: goodput", lambda: DisaggRouteEnv(path))


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
def test_an_unknown_render_mode_is_refused() -> None:
    sentence = "render_mode is 'video'; allowed are ansi, rgb_array, human"
    refused(sentence, lambda: gym.make(disaggroute.ENVIRONMENT, render_mode="video"))


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, "3", True, None])
def test_a_bad_number_of_environments_is_refused(num_envs: Any) -> None:
    sentence = f"num_envs is {num_envs!r}; it must be an integer of at least 1"
    refused(sentence, lambda: gym.make_vec(disaggroute.ENVIRONMENT, num_envs))


@pytest.mark.parametrize("mode", ["NEXT_STEP", None, 1])
def test_an_unknown_autoreset_mode_is_refused(mode: Any) -> None:
    sentence = f"autoreset_mode is {mode!r}; allowed are NextStep, SameStep, Disabled"
    refused(sentence, lambda: DisaggRouteVectorEnv(2, autoreset_mode=mode))


def test_a_vector_environment_is_not_rendered() -> None:
    sentence = "render_mode is 'ansi'; a vector environment is not rendered, a single one is"
    refused(sentence, lambda: gym.make_vec(disaggroute.ENVIRONMENT, 2, render_mode="ansi"))


BAD_SEEDS = [-1, 1.5, "7", True, 2**63, [1], np.int64(-3)]


@pytest.mark.parametrize("seed", BAD_SEEDS, ids=repr)
def test_a_bad_seed_is_refused_and_the_episode_goes_on(seed: Any) -> None:
    env = DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    refused(f"seed is {seed!r}; it must be an integer from 0 to 2^63 − 1", lambda: env.reset(seed=seed))
    env.step((0, 0))


@pytest.mark.parametrize("options", [{"a": 1}, {"reset_mask": np.array([True])}, "a", 5], ids=repr)
def test_options_are_refused(options: Any) -> None:
    env = DisaggRouteEnv(**SHORT)
    refused(f"options is {options!r}; reset takes none", lambda: env.reset(options=options))


def test_a_step_needs_a_reset() -> None:
    env = DisaggRouteEnv(**SHORT)
    refused("no episode has begun; call reset() before step()", lambda: env.step((0, 0)), ResetNeeded)
    refused("no episode has begun; call reset() first", lambda: env.simulator, RuntimeError)
    env.reset(seed=1)
    list(rollout(env))
    refused("the episode has ended; call reset() before step()", lambda: env.step((0, 0)), ResetNeeded)
    env.reset(seed=1)
    env.step((0, 0))


def test_a_step_after_an_interrupted_last_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    left = len(list(rollout(env)))
    env.reset(seed=1)
    for _ in range(left - 1):
        env.step((0, 0))
    run = env._episodes.run

    def interrupted() -> None:
        run()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env._episodes, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step((0, 0))
    refused("action: no request awaits one; call reset() first", lambda: env.step((0, 0)))
    env.reset(seed=1)
    env.step((0, 0))


BAD_PAIRS: list[tuple[Any, str]] = [
    *(
        (action, f"action is {action!r}; {PAIR}")
        for action in (
            None,
            3,
            (0,),
            (0, 1, 2),
            (0.0, 1),
            (0, float("nan")),
            (True, 1),
            (0, np.False_),
            (None, 0),
            "01",
            (2**64, 0),
            np.zeros(2, np.float32),
            np.zeros((1, 2), np.int64),
            np.array(3),
        )
    ),
    ((2, 0), "action: prefill instance is 2; allowed are 0 to 1"),
    ((0, 4), "action: decode instance is 4; allowed are 0 to 3"),
    ((-1, 0), "action: prefill instance is -1; allowed are 0 to 1"),
    ((0, -1), "action: decode instance is -1; allowed are 0 to 3"),
]


@pytest.mark.parametrize(("action", "sentence"), BAD_PAIRS, ids=lambda value: repr(value)[:40])
def test_a_bad_pair_is_refused_and_the_episode_goes_on(action: Any, sentence: str) -> None:
    env, other = DisaggRouteEnv(**SHORT), DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    other.reset(seed=1)
    refused(sentence, lambda: env.step(action))
    assert data_equivalence(env.step((1, 2)), other.step((1, 2)), exact=True)


@pytest.mark.parametrize(
    "action", [[1, 2], np.array([1, 2]), np.array([1, 2], np.uint8), (np.int32(1), np.array(2))], ids=repr
)
def test_a_pair_of_integers_of_any_kind_is_taken(action: Any) -> None:
    env, other = DisaggRouteEnv(**SHORT), DisaggRouteEnv(**SHORT)
    env.reset(seed=1)
    other.reset(seed=1)
    assert data_equivalence(env.step(action), other.step((1, 2)), exact=True)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        *((a, f"action is {a!r}; {SINGLE}") for a in (None, 1.0, True, (0, 0), [1], np.array([1]), "1", 2**64)),
        (3, "action: mixed instance is 3; allowed are 0 to 2"),
        (-1, "action: mixed instance is -1; allowed are 0 to 2"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_index_of_a_mixed_instance_is_refused(action: Any, sentence: str) -> None:
    env = DisaggRouteEnv(**SHORT, topology="3M", rate=15)
    env.reset(seed=1)
    refused(sentence, lambda: env.step(action))
    env.step(np.int64(1))


def test_padding_and_instances_that_are_down_or_draining_are_refused() -> None:
    down = events((0, "prefill/0", "drain"), (0, "decode/2", "kill"))
    env = DisaggRouteEnv(**SHORT, cluster=pools(events=down), rate=12, pad_to=[4, 6])
    env.reset(seed=1)
    masked = "is masked (down, draining or padding); allowed are"
    refused(f"action: prefill instance 0 {masked} 1 (info['action_mask'])", lambda: env.step((0, 0)))
    refused(f"action: decode instance 2 {masked} 0, 1 (info['action_mask'])", lambda: env.step((1, 2)))
    refused(f"action: prefill instance 3 {masked} 1 (info['action_mask'])", lambda: env.step((3, 0)))
    refused(f"action: decode instance 5 {masked} 0, 1 (info['action_mask'])", lambda: env.step((1, 5)))
    refused("action: decode instance is 6; allowed are 0 to 5", lambda: env.step((1, 6)))
    env.step((1, 1))


def test_a_window_without_a_request_is_refused() -> None:
    env = DisaggRouteEnv(**QUIET)
    sentence = (
        "document-2p4d-a40-qwen2.5-3b, seed 2: no request awaits a decision between 0 s and 2 s; "
        "raise the rate or the duration"
    )
    refused(sentence, lambda: env.reset(seed=2))
    refused("no episode has begun; call reset() before step()", lambda: env.step((0, 0)), ResetNeeded)
    env.reset(seed=1)
    env.step((0, 0))


def test_a_window_in_which_no_instance_may_be_assigned_is_refused() -> None:
    env = DisaggRouteEnv(**SHORT, cluster=pools(events=events((0, "decode/0", "drain")), decodes=1), rate=12)
    refused("…, seed 1: no request awaits a decision between 1 s and 5 s; …", lambda: env.reset(seed=1))


def vector(num_envs: int = 2, **arguments: Any) -> DisaggRouteVectorEnv:
    return DisaggRouteVectorEnv(num_envs, **SHORT | arguments)


SHAPE = "they must be integers of shape (2, 2)"


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (np.zeros((2, 2)), f"actions have shape (2, 2) and dtype float64; {SHAPE}"),
        (np.zeros((2, 2), np.bool_), f"actions have shape (2, 2) and dtype bool; {SHAPE}"),
        (np.zeros(2, np.int64), f"actions have shape (2,) and dtype int64; {SHAPE}"),
        (np.zeros((3, 2), np.int64), f"actions have shape (3, 2) and dtype int64; {SHAPE}"),
        (None, f"actions have shape () and dtype object; {SHAPE}"),
        ([[0, 0], [0]], f"actions are [[0, 0], [0]]; {SHAPE}"),
        ([[0, 0], [0, 4]], "action of environment 1: decode instance is 4; allowed are 0 to 3"),
        ([[-1, 0], [0, 0]], "action of environment 0: prefill instance is -1; allowed are 0 to 1"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_actions_of_a_vector_environment_are_refused_and_nothing_is_done(actions: Any, sentence: str) -> None:
    env, other = vector(), vector()
    good = np.array([[1, 2], [0, 3]])
    env.reset(seed=1)
    other.reset(seed=1)
    refused(sentence, lambda: env.step(actions))
    assert data_equivalence(env.step(good), other.step(good), exact=True)


@pytest.mark.parametrize("bad", [[0, 9], [5, 0], [0, -1]])
def test_a_refused_step_that_was_to_begin_an_episode_begins_none(bad: list[int]) -> None:
    env, other = vector(), vector()
    for each in (env, other):
        each.reset(seed=[1, 3])
    done, zeros = np.zeros(2, np.bool_), np.zeros((2, 2), np.int64)
    while not done.any():
        _, _, done, _, _ = env.step(zeros)
        other.step(zeros)
    actions = zeros.copy()
    actions[~done] = bad
    refused(f"action of environment {int(np.argmin(done))}: …", lambda: env.step(actions))
    actions[~done], actions[done] = [0, 0], bad  # where an episode begins the action means nothing
    assert data_equivalence(env.step(actions), other.step(zeros), exact=True)


def test_a_masked_instance_is_refused_where_another_episode_is_to_begin() -> None:
    env = vector(cluster=pools(events=TROUBLE), rate=12)
    env.reset(seed=[1, 1])
    while True:
        actions = np.stack([np.argmax(env.action_masks()[:, :2], axis=1), np.argmax(env.action_masks()[:, 2:], axis=1)])
        done = env.step(actions.T)[2]
        if done.all():
            break
    env.step(np.full((2, 2), 7))
    masked = np.flatnonzero(~env.action_masks()[0])
    assert masked.tolist() == [3], "the episode begins while decode/1 drains"
    refused("action of environment 0: decode instance 1 is masked …", lambda: env.step(np.array([[0, 1], [0, 0]])))


@pytest.mark.parametrize("seed", [*BAD_SEEDS[:5], {1, 2}, np.array(3)], ids=repr)
def test_a_bad_seed_of_a_vector_environment_is_refused_and_its_episodes_go_on(seed: Any) -> None:
    env = vector()
    env.reset(seed=1)
    refused(f"seed is {seed!r}; it must be an integer from 0 to 2^63 − 1", lambda: env.reset(seed=seed))
    if np.ndim(seed) == 0:
        refused(f"seed is {seed!r}; it must be an integer from 0 to 2^63 − 1", lambda: env.reset(seed=[1, seed]))
    env.step(np.zeros((2, 2), np.int64))


def test_a_wrong_number_of_seeds_is_refused() -> None:
    refused("seed has 3 entries; it must have 2, one per environment", lambda: vector().reset(seed=[1, 2, 3]))
    sentence = f"seed is {2**63}; it must be an integer from 0 to 2^63 − 1"
    refused(sentence, lambda: vector().reset(seed=2**63 - 1))


@pytest.mark.parametrize(
    "mask", [None, [True, False], np.ones(2, np.int64), np.ones(3, np.bool_), np.zeros(2, np.bool_)], ids=repr
)
def test_a_bad_reset_mask_is_refused(mask: Any) -> None:
    sentence = f"reset_mask is {mask!r}; it must be a bool array of shape (2,) with a True in it"
    refused(sentence, lambda: vector().reset(options={"reset_mask": mask}))


@pytest.mark.parametrize("options", [{"a": 1}, {"reset_mask": np.ones(2, np.bool_), "a": 1}, "a", 5], ids=repr)
def test_unknown_options_of_a_vector_environment_are_refused(options: Any) -> None:
    refused(f"options is {options!r}; allowed is {{'reset_mask': …}}", lambda: vector().reset(options=options))


def test_every_environment_needs_a_reset() -> None:
    env, zeros = vector(), np.zeros((2, 2), np.int64)
    refused("environment 0 has not begun; call reset() before step()", lambda: env.step(zeros), ResetNeeded)
    env.reset(options={"reset_mask": np.array([True, False])})
    refused("environment 1 has not begun; call reset() before step()", lambda: env.step(zeros), ResetNeeded)


def test_without_autoreset_what_has_ended_is_not_stepped() -> None:
    env, zeros = vector(autoreset_mode="Disabled"), np.zeros((2, 2), np.int64)
    env.reset(seed=[1, 3])
    done = np.zeros(2, np.bool_)
    while not done.any():
        done = env.step(zeros)[2]
    sentence = (
        f"environment {int(np.argmax(done))} has ended; autoreset is disabled, so reset it with "
        "options={'reset_mask': …}"
    )
    refused(sentence, lambda: env.step(zeros), ResetNeeded)
    env.reset(options={"reset_mask": done})
    env.step(zeros)


def test_an_environment_that_could_not_begin_is_not_stepped() -> None:
    env, zeros = DisaggRouteVectorEnv(2, **QUIET), np.zeros((2, 2), np.int64)
    env.reset(seed=[1, 1])
    env.step(zeros)
    refused("document-2p4d-a40-qwen2.5-3b, seed 2: no request awaits …", lambda: env.reset(seed=[1, 2]))
    refused("environment 1 has not begun; call reset() before step()", lambda: env.step(zeros), ResetNeeded)
    env.reset(seed=[1, 1])
    env.step(zeros)
