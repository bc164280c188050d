"""Traffic for a cluster that others have built: requests that do not fit are left out, fixed targets are its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import cluster_config, profiles, traces
from disaggroute.envs.cluster import Cluster
from disaggroute.envs.profiles import SloTargets
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.envs.traffic import FittedTraffic

PROFILE = profiles.load("a40-qwen2.5-3b")
OWN = SloTargets((10**12, 2 * 10**12), (10**11, 3 * 10**11))


def small(max_model_len: int = 400) -> Cluster:
    """A cluster with a short context."""
    whole = cluster_config.from_topology("1P1D", PROFILE.name).build()
    engine = replace(whole.prefill[0], max_model_len=max_model_len)
    return replace(whole, prefill=(engine,), decode=(engine,))


def setting(targets: SloTargets = OWN, cluster: Cluster | None = None, **fields: Any) -> Setting:
    usual = {"workload": "chat", "rate": 10, "duration_s": 30, "warmup_s": 0}
    scenario = Scenario.make(**(usual | fields))
    return Setting.on(scenario, cluster or small(), PROFILE, gpus=2, targets=targets)


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    made = setting()
    trace = made.prepare(5).trace
    assert (trace.prompt + trace.output <= 400).all()
    assert isinstance(made.traffic, FittedTraffic)
    left, total = made.traffic.left_out[5]
    assert left > 0 and left + len(trace) == total
    everything = setting(cluster=small(40_000)).prepare(5).trace
    kept = everything.prompt + everything.output <= 400
    assert np.array_equal(trace.arrival, everything.arrival[kept]) and (~kept).sum() == left


def test_fixed_targets_are_the_clusters() -> None:
    trace = setting().prepare(5).trace
    assert set(zip(trace.slo.tolist(), trace.ttft_target.tolist(), trace.tpot_target.tolist(), strict=True)) == {
        (0, OWN.ttft[0], OWN.tpot[0]),
        (1, OWN.ttft[1], OWN.tpot[1]),
    }


def test_relative_targets_stay_each_requests_own() -> None:
    ttft = setting().prepare(5).trace.ttft_target
    relative = _relative(OWN).prepare(5).trace
    assert len(set(relative.ttft_target.tolist())) > 5 and not np.array_equal(relative.ttft_target, ttft)
    assert np.array_equal(relative.ttft_target, _relative(PROFILE.slo_targets).prepare(5).trace.ttft_target)


def _relative(own: SloTargets) -> Setting:
    scenario = Scenario.make(workload="chat", rate=10, duration_s=30, warmup_s=0, targets="relative")
    return Setting.on(scenario, small(), PROFILE, gpus=2, targets=own)


def test_a_files_own_targets_stay(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    names = "arrival_s,prompt_tokens,output_tokens,slo,ttft_target_ps,tpot_target_ps"
    file.write_text(f"{names}\n0,10,5,tight,7000,700\n1,10,5,loose,8000,800\n")
    assert traces.read(str(file)).ttft_target is not None
    scenario = Scenario.make(workload=str(file), warmup_s=0)
    trace = Setting.on(scenario, small(), PROFILE, gpus=2, targets=OWN).prepare(0).trace
    assert trace.ttft_target.tolist() == [7_000, 8_000]


def test_targets_belong_to_the_experiment() -> None:
    assert setting().configuration() != setting(PROFILE.slo_targets).configuration()


def test_a_cluster_that_no_request_fits_is_named() -> None:
    with pytest.raises(ValueError, match=r"chat: no request of [0-9]+ fits the engines of .*, whose context"):
        setting(cluster=small(3)).prepare(5)
