from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disaggroute.envs import cluster_config
from disaggroute.envs.cluster import PS_PER_S

A40 = "a40-qwen2.5-3b"


@pytest.mark.parametrize("name", cluster_config.names())
def test_every_shipped_cluster_builds(name: str) -> None:
    config = cluster_config.load(name)
    assert config.build().name == name == config.name
    assert len(config.router_constants()) == len(config.instance_names())


def test_the_studys_cluster_has_two_prefill_and_four_decode_instances() -> None:
    cluster = cluster_config.load("2p4d-a40").build()
    assert (len(cluster.prefill), len(cluster.decode), len(cluster.mixed)) == (2, 4, 0)
    assert cluster.poll_interval == 50_000_000_000
    assert {e.name for e in cluster.instances} == {A40}


def test_a_topology_gives_the_same_cluster_as_the_file() -> None:
    named, made = cluster_config.load("2p4d-a40"), cluster_config.from_topology("2p4d", A40)
    assert made.name == "2p4d-a40-qwen2.5-3b"
    assert made.model_dump(exclude={"name"}) == named.model_dump(exclude={"name"})


def test_an_aggregated_topology_has_mixed_instances_only() -> None:
    config = cluster_config.from_topology("4M", A40)
    assert config.build().aggregated
    assert config.instance_names() == ("mixed/0", "mixed/1", "mixed/2", "mixed/3")
    assert config.profile.name == A40


def test_pools_of_one_role_may_differ() -> None:
    decode = [
        {"count": 2, "profile": A40, "overrides": {"kv_tokens": 1600, "max_num_batched_tokens": 300}},
        {"count": 1, "profile": "h100-qwen2.5-3b", "overrides": {"num_blocks": 5}},
    ]
    cluster = cluster_config.from_topology("1P1D", A40, decode=decode).build()
    assert [e.num_blocks for e in cluster.decode] == [100, 100, 5]
    assert [e.max_num_batched_tokens for e in cluster.decode] == [300, 300, 8192]
    assert cluster.prefill[0].num_blocks == 3750


def test_events_name_instances_and_are_sorted_by_time() -> None:
    events = [
        {"at_s": 20, "instance": "decode/3", "action": "kill"},
        {"at_s": 10.5, "instance": "prefill/1", "action": "drain"},
        {"at_s": 30, "instance": "decode/3", "action": "return"},
    ]
    cluster = cluster_config.from_topology("2P4D", A40, events=events, on_kill="reroute").build()
    assert [(e.time, e.instance, e.action) for e in cluster.events] == [
        (10_500_000_000_000, 1, "drain"),
        (20 * PS_PER_S, 5, "kill"),
        (30 * PS_PER_S, 5, "return"),
    ]
    assert cluster.on_kill == "reroute"


def test_pair_latencies_replace_those_of_the_profiles() -> None:
    cluster = cluster_config.from_topology("1P2D", A40, pair_latency_ms=[[0.5, 2]]).build()
    assert cluster.latency_matrix().tolist() == [[500_000_000, 2_000_000_000]]


def test_a_wrong_calibration_changes_the_router_and_nothing_in_the_cluster() -> None:
    true, naive = cluster_config.load("2p4d-a40"), cluster_config.load("2p4d-a40-naive")
    np.testing.assert_allclose(
        naive.router_constants().tau_decode * 7.4, true.router_constants().tau_decode, rtol=1e-9
    )
    for mine, theirs in zip(naive.build().instances, true.build().instances, strict=True):
        assert mine.base_decode == theirs.base_decode
        assert (mine.batch == theirs.batch).all()


def test_calibration_overrides_come_after_the_scale() -> None:
    calibration = {"scale": 0.5, "overrides": {"tau_prefill": 1e-3}}
    constants = cluster_config.load("2p4d-a40", calibration=calibration).router_constants()
    assert constants.tau_prefill.tolist() == [1e-3] * 6


def test_loading_takes_overrides() -> None:
    config = cluster_config.load("2p4d-a40", first_token="prefill", decode={"count": 7}, routers=2)
    cluster = config.build()
    assert (cluster.first_token, len(cluster.decode), cluster.routers) == ("prefill", 7, 2)


@pytest.mark.parametrize("topology", ["2P4", "P4D", "0P4D", "2P4D4M", "", "4"])
def test_a_topology_that_does_not_read_is_refused(topology: str) -> None:
    with pytest.raises(ValueError, match="it must read like 2P4D"):
        cluster_config.from_topology(topology, A40)


EVENT = {"at_s": 1, "instance": "decode/0", "action": "kill"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"events": [EVENT | {"instance": "decode/4"}]}, r"'decode/4' does not exist; allowed: prefill/0 to"),
        (
            {"events": [EVENT | {"action": "stop"}]},
            r"events\.0\.action is 'stop'; it must be 'kill', 'drain'",
        ),
        ({"events": [EVENT | {"at_s": -1}]}, r"events\.0\.at_s is -1; it must be greater than or equal to 0"),
        ({"first_token": "both"}, "first_token is 'both'; it must be 'decode' or 'prefill'"),
        ({"poll_interval_s": 0}, "poll_interval_s is 0; it must be greater than 0"),
        ({"decode": {"count": 0}}, r"decode\.0\.count is 0; it must be greater than or equal to 1"),
        ({"decode": {"overrides": {"kv": 1}}}, r"unknown field of decode\.0\.overrides 'kv'"),
        ({"calibration": {"scale": 0}}, r"calibration\.scale is 0; it must be greater than 0"),
        ({"poll_interval": 1}, "unknown field 'poll_interval'; nearest: poll_interval_s"),
        ({"routers": 0}, "routers is 0; it must be greater than or equal to 1"),
        ({"routers": -2}, "routers is -2; it must be greater than or equal to 1"),
        ({"routers": 9}, "routers is 9; it must be less than or equal to 8"),
        ({"routers": 1.5}, r"routers is 1\.5; it must be a valid integer"),
        ({"routers": "two"}, "routers is 'two'; it must be a valid integer"),
        ({"dealing": "hash"}, "dealing is 'hash'; it must be 'round-robin' or 'random'"),
    ],
)
def test_a_bad_field_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        cluster_config.load("2p4d-a40", **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"decode": {"profile": "a40"}}, "2p4d-a40: decode: unknown profile 'a40'"),
        ({"decode": []}, "2p4d-a40: the decode pool is empty"),
        ({"mixed": {"count": 1, "profile": A40}}, "mixed instances stand beside prefill or decode instances"),
        ({"pair_latency_ms": [[1, 1]]}, r"pair_latency_ms has rows of \[2\] entries; it must have 2 rows"),
        ({"decode": {"overrides": {"block_size": 32}}}, "block_size differs between instances"),
    ],
)
def test_a_cluster_that_cannot_run_is_refused_when_built(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cluster_config.load("2p4d-a40", **changes).build()


def test_a_bad_calibration_names_the_cluster() -> None:
    config = cluster_config.load("2p4d-a40", calibration={"overrides": {"tau": 1}})
    with pytest.raises(ValueError, match="2p4d-a40: calibration: unknown router constant 'tau'"):
        config.router_constants()
