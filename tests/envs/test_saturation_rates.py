"""Stored saturation rates belong to a workload and to a cluster's content."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.envs import cluster_config, profiles, saturation_rates, workloads
from disaggroute.envs.saturation_rates import read, stored_rate
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting


def test_every_stored_rate_names_what_exists_and_how_to_find_it_again() -> None:
    assert read()
    for entry in read():
        assert entry.workload in workloads.names()
        assert entry.cluster in cluster_config.names() or entry.profile in profiles.names()
        assert entry.command.startswith(f"disaggroute saturate {entry.workload} ")
        assert entry.share == pytest.approx(0.84, abs=0.002)


def test_a_cluster_of_another_name_and_the_same_content_has_the_same_rate() -> None:
    for name in ("2p4d-a40", "2p4d-a40-naive"):
        assert stored_rate("mixed-bursty-a40", cluster_config.load(name).build()) == 13.97


def test_several_routers_get_the_traffic_of_one() -> None:
    several = cluster_config.load("2p4d-a40", routers=4, dealing="random").build()
    assert stored_rate("mixed-bursty-a40", several) == 13.97


def test_another_workload_or_cluster_has_none() -> None:
    assert stored_rate("mixed-bursty-a40", cluster_config.from_topology("3P5D", "a40-qwen2.5-3b").build()) is None
    assert stored_rate("something-else", cluster_config.load("2p4d-a40").build()) is None


def test_other_targets_or_a_file_of_ones_own_have_no_stored_rate(tmp_path: Path) -> None:
    assert Setting.of(Scenario.make()).stored_rate == 13.97
    assert Setting.of(Scenario.make(targets="relative")).stored_rate is None
    path = tmp_path / "mine.yaml"
    path.write_text("base: mixed-bursty-a40\nname: mixed-bursty-a40\n")
    assert Setting.of(Scenario.make(workload=str(path))).stored_rate is None


def test_a_profile_that_sets_other_targets_than_the_clusters_own_leaves_no_stored_rate() -> None:
    own = Scenario.make(cluster="2p4d-a40", profile="a40-qwen2.5-3b")
    assert Setting.of(own).stored_rate == 13.97
    assert Setting.of(Scenario.make(cluster="2p4d-a40", profile="h100-qwen3-8b")).stored_rate is None


def test_a_cluster_with_overrides_has_a_rate_of_its_own() -> None:
    main = Setting.of(Scenario.make(workload="mixed-bursty", cluster="2p4d-a40-30k"))
    assert main.stored_rate == 11.65
    assert Setting.of(Scenario.make(workload="mixed-bursty", topology="2P4D")).stored_rate is None


def test_a_malformed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text("rates: [{workload: chat}]\n")
    with pytest.raises(ValueError, match="rate is missing"):
        saturation_rates.read(path)


@pytest.mark.parametrize(
    ("cluster", "given"),
    [
        ("", "nothing"),
        ("topology: 2P4D, ", "topology"),
        ("cluster: 2p4d-a40, topology: 2P4D, profile: a40-qwen2.5-3b, ", "cluster and topology and profile"),
    ],
)
def test_an_entry_names_its_cluster_in_one_way(tmp_path: Path, cluster: str, given: str) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(f"rates: [{{workload: chat, {cluster}rate: 1, share: 0.84, command: x}}]\n")
    with pytest.raises(ValueError, match=f"{given} given; name a cluster, or a topology and a profile"):
        saturation_rates.read(path)
