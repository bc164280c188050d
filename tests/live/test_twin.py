"""The simulated twin of a live cluster, and the targets that its file sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from disaggroute.envs import profiles
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.digest import digest
from disaggroute.envs.trace import Trace
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.service import Service, ServiceOptions
from disaggroute.live.twin import twin, with_targets

PROFILE = "a40-qwen2.5-3b"


def cluster(**changes: Any) -> LiveCluster:
    pools = {
        "prefill": [{"url": "http://127.0.0.1:1"}],
        "decode": [
            {"url": "http://127.0.0.1:2", "overrides": {"max_num_seqs": 7}},
            {"url": "http://127.0.0.1:3", "profile": "h100-qwen3-8b", "overrides": {"max_model_len": 900}},
        ],
    }
    return LiveCluster.load({"name": "here", "model": "tiny", "profile": PROFILE} | pools | changes)


def test_it_has_the_instances_that_the_router_believes_in_before_it_has_met_the_engines() -> None:
    for live in (cluster(), cluster(max_model_len=1_000), cluster(max_model_len=800)):
        believed = Service(live, ServiceOptions()).router.state.cluster
        built = twin(live).build()
        assert digest(built.prefill + built.decode) == digest(believed.prefill + believed.decode)


def test_mixed_engines_make_a_mixed_cluster() -> None:
    live = cluster(prefill=[], decode=[], mixed=[{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}])
    assert len(twin(live).build().mixed) == 2 and twin(live).build().aggregated


def test_targets_of_the_file_replace_those_of_the_profile_and_leave_relative_ones() -> None:
    believed = profiles.load(PROFILE).slo_targets
    slo = np.array([0, 1, 1])
    trace = Trace(
        arrival=np.arange(3),
        prompt=np.ones(3, int),
        output=np.ones(3, int),
        slo=slo,
        family=np.zeros(3, int),
        ttft_target=np.array([believed.ttft[0], believed.ttft[1], 77]),
        tpot_target=np.array(believed.tpot)[slo],
    )
    assert with_targets(trace, believed, cluster()) is trace
    slow = {"tight": {"ttft_s": 2, "tpot_s": 0.5}, "loose": {"ttft_s": 4, "tpot_s": 1}}
    own = with_targets(trace, believed, cluster(slo=slow))
    assert own.ttft_target.tolist() == [2 * PS_PER_S, 4 * PS_PER_S, 77]
    assert own.tpot_target.tolist() == [PS_PER_S // 2, PS_PER_S, PS_PER_S]
