"""Which instances may be assigned, as the masks tell it, and what becomes of requests when none may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.environment import DisaggRouteEnv
from disaggroute.envs.records import REJECTED

from .environments import ARGUMENTS, MIXED_TROUBLE, SHORT, TROUBLE, events, pools, rollout


def open_instances(schedule: list[dict[str, Any]], count: int, role: str, now: int) -> list[bool]:
    """Which instances of a role a failure schedule leaves open, entries at `now` included."""
    states = ["up"] * count
    for entry in schedule:
        where, index = entry["instance"].split("/")
        if where == role and round(entry["at_s"] * PS_PER_S) <= now:
            i, action = int(index), entry["action"]
            if action == "kill":
                states[i] = "down"
            elif action == "return":
                states[i] = "up"
            elif states[i] == "up":
                states[i] = "draining"
    return [state == "up" for state in states]


@pytest.mark.parametrize("on_kill", ["fail", "reroute"])
def test_masks_follow_the_failure_schedule(on_kill: str) -> None:
    env = DisaggRouteEnv(**SHORT, cluster=pools(events=TROUBLE, on_kill=on_kill), rate=12, pad_to=[3, 5])
    _, info = env.reset(seed=3)
    told = [info, *(step.info for step in rollout(env))][:-1]
    seen = set()
    for info in told:
        now = round(info["now"] * PS_PER_S)
        prefill = [*open_instances(TROUBLE, 2, "prefill", now), False]
        decode = [*open_instances(TROUBLE, 3, "decode", now), False, False]
        masks = info["action_mask"]
        assert [mask.tolist() for mask in masks] == [prefill, decode]
        assert all(mask.dtype == np.int8 for mask in masks)
        seen.add((*prefill, *decode))
    assert len(seen) > 4


def test_masks_of_mixed_instances_are_one_array() -> None:
    env = DisaggRouteEnv(**ARGUMENTS["aggregated, padded, failing"])
    _, info = env.reset(seed=3)
    for step in rollout(env):
        now = round(info["now"] * PS_PER_S)
        expected = [*open_instances(MIXED_TROUBLE, 3, "mixed", now), False, False]
        assert info["action_mask"].dtype == np.int8 and info["action_mask"].tolist() == expected
        info = step.info


@pytest.mark.parametrize("setting", ["kills reroute", "aggregated, padded, failing", "padded", "as it comes"])
def test_the_method_tells_what_the_info_tells_as_one_bool_array(setting: str) -> None:
    env = DisaggRouteEnv(**ARGUMENTS[setting])
    env.reset(seed=3)
    for step in rollout(env):
        mask = step.info["action_mask"]
        told = env.action_masks()
        assert told.dtype == np.bool_
        assert told.tolist() == [bool(x) for part in (mask if isinstance(mask, tuple) else (mask,)) for x in part]
        assert env.action_space.contains(env.action_space.sample(mask=mask))  # type: ignore[arg-type]


def test_while_no_instance_may_be_assigned_requests_fail_without_a_step_and_are_missed() -> None:
    env = DisaggRouteEnv(**ARGUMENTS["kills fail"])
    _, info = env.reset(seed=3)
    times, missed = [info["now"]], {}
    for k, step in enumerate(rollout(env), 1):
        times.append(step.info["now"])
        missed |= {request: k for request in step.info["missed"]}
    records, trace = env.simulator.records, env.simulator.trace
    rejected = np.flatnonzero(records["status"] == REJECTED)
    between = (trace.arrival >= 2.6 * PS_PER_S) & (trace.arrival < 2.9 * PS_PER_S)
    assert len(rejected) and (rejected == np.flatnonzero(between)).all()
    assert not any(2.6 <= now < 2.9 for now in times[:-1])
    step = next(k for k, now in enumerate(times) if now >= 2.9)
    assert all(missed[request] == step for request in rejected.tolist())


def test_a_lost_request_asks_for_another_decision_at_once() -> None:
    schedule = events((3.5, "prefill/0", "kill"))
    env = DisaggRouteEnv(**SHORT, cluster=pools(events=schedule, on_kill="reroute"), rate=12)
    _, info = env.reset(seed=3)
    asked = [info, *(step.info for step in rollout(env))][:-1]
    again = [info["request"] for info in asked if info["now"] == 3.5]
    records = env.simulator.records
    assert again == np.flatnonzero(records["reroutes"] > 0).tolist() and len(again) > 1
    first = [info["request"] for info in asked if info["now"] != 3.5]
    assert first == sorted(set(first)) and set(again) <= set(first)
