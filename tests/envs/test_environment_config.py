"""Configurations of the environment: by name, file, mapping or model, with fields replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.envs import cluster_config, environment_config
from disaggroute.envs.environment_config import DEFAULT, EnvironmentConfig
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting


@pytest.mark.parametrize("name", environment_config.names())
def test_every_registered_configuration_has_a_rate(name: str) -> None:
    config = EnvironmentConfig.load(name)
    setting = Setting.of(config.scenario)
    assert config.rate is not None or setting.stored_rate is not None
    assert setting.duration_s == 300 and config.warmup_s == 60
    assert config.reward == "slo-miss" and config.predictor == "bucket"


def test_the_default_is_registered() -> None:
    assert DEFAULT in environment_config.names()
    assert EnvironmentConfig.load() == EnvironmentConfig.load(DEFAULT)


def test_the_scenario_is_the_configuration_without_what_concerns_the_agent() -> None:
    config = EnvironmentConfig.load("chat", rate=5, reward="latency", pad_to=(4, 8))
    assert config.scenario == Scenario.make(**EnvironmentConfig.load("chat", rate=5).scenario.model_dump())
    assert set(EnvironmentConfig.model_fields) - set(Scenario.model_fields) == {"reward", "pad_to"}


def test_names_files_mappings_and_models_mean_the_same(tmp_path: Path) -> None:
    by_name = EnvironmentConfig.load("chat")
    path = tmp_path / "mine.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in by_name.model_dump(exclude_none=True).items()))
    assert EnvironmentConfig.load(path) == EnvironmentConfig.load(str(path)) == by_name
    assert EnvironmentConfig.load(by_name) == EnvironmentConfig.load(by_name.model_dump()) == by_name


@pytest.mark.parametrize("base", ["chat", EnvironmentConfig.load("chat"), EnvironmentConfig.load("chat").model_dump()])
def test_a_cluster_takes_the_place_of_a_topology_and_the_other_way_round(base: object) -> None:
    with_cluster = EnvironmentConfig.load(base, cluster="2p6d-a40")  # type: ignore[arg-type]
    assert (with_cluster.cluster, with_cluster.topology) == ("2p6d-a40", None)
    assert EnvironmentConfig.load(with_cluster, topology="1P3D").cluster is None
    model = cluster_config.load("2p3d-a40")
    assert EnvironmentConfig.load(base, cluster=model).cluster == model  # type: ignore[arg-type]
    assert EnvironmentConfig.load({"cluster": model}).cluster == model


def test_a_field_that_is_given_as_none_is_as_if_it_were_not_decided() -> None:
    assert EnvironmentConfig.load("chat", topology=None, cluster=None) == EnvironmentConfig.load("chat", topology=None)
    assert EnvironmentConfig.load("chat", topology=None).topology is None


def test_a_profile_takes_the_place_of_a_cluster_unless_one_is_given() -> None:
    other = EnvironmentConfig.load("mixed-bursty", profile="h100-qwen3-8b", rate=20)
    assert other.cluster is None and other.profile == "h100-qwen3-8b"
    both = EnvironmentConfig.load("mixed-bursty", profile="h100-qwen3-8b", cluster="2p6d-a40", rate=20)
    assert (both.cluster, both.profile) == ("2p6d-a40", "h100-qwen3-8b")
