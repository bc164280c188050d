"""Scenarios: names are looked up, and every bad one is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.training.runs import fingerprint

ROWS = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{k * 0.5},{100 + k},{10 + k}\n" for k in range(100)
)


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    path = tmp_path / "recorded.csv"
    path.write_text(ROWS)
    return str(path)


def test_the_default_is_the_studys_scenario_on_two_prefill_and_four_decode_instances() -> None:
    setting = Setting.of(Scenario.make(rate=20))
    assert setting.pools == {"prefill": 2, "decode": 4} and setting.gpus == 6
    assert setting.name == "mixed-bursty-a40-2p4d-a40-qwen2.5-3b"
    assert setting.duration_s == 300


def test_the_trace_covers_warm_up_and_window_and_the_window_follows_the_warm_up() -> None:
    setting = Setting.of(Scenario.make(workload="chat", rate=20, duration_s=10, warmup_s=5))
    prepared = setting.prepare(3)
    assert prepared.trace.arrival[-1] < 15e12
    inside = prepared.window.holds(prepared.trace)
    assert prepared.trace.arrival[inside][0] >= 5e12 and 0 < inside.sum() < len(inside)
    assert 0.9 < prepared.ceiling <= 1.0
    assert (prepared.alone > 0).all()


def test_policies_get_the_same_trace_and_seeds_get_different_ones() -> None:
    setting = Setting.of(Scenario.make(workload="chat", rate=20, duration_s=10, warmup_s=0))
    again = Setting.of(Scenario.make(workload="chat", rate=20, duration_s=10, warmup_s=0))
    assert np.array_equal(setting.prepare(1).trace.arrival, again.prepare(1).trace.arrival)
    assert not np.array_equal(setting.prepare(1).trace.prompt, setting.prepare(2).trace.prompt)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": -1}, "rate is -1; it must be greater than 0"),
        ({"rate": 0}, "rate is 0; it must be greater than 0"),
        ({"rate": float("nan")}, "rate is nan; it must be a finite number"),
        ({"rate": float("inf")}, "rate is inf; it must be a finite number"),
        ({"duration_s": 0}, "duration_s is 0"),
        ({"warmup_s": -1}, "warmup_s is -1"),
        ({"tight_share": 2}, "tight_share is 2"),
        ({"targets": "hard"}, "targets is 'hard'; it must be 'fixed' or 'relative'"),
        (
            {"observability": "full", "predictor": "prompt"},
            "predictor is 'prompt', but with observability full the router sees true lengths; leave one of them out",
        ),
        ({"topology": "2P4D", "cluster": "2p4d-a40"}, "topology and cluster both describe the cluster"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scenario.make(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"workload": "mixed-busty-a40"}, "unknown workload 'mixed-busty-a40'; nearest: mixed-bursty-a40"),
        ({"profile": "a40-qwen2.5-3"}, "unknown profile 'a40-qwen2.5-3'; nearest: a40-qwen2.5-3b"),
        ({"cluster": "2p4d-a4"}, "unknown cluster '2p4d-a4'; nearest: 2p4d-a40"),
        ({"predictor": "buckt"}, "unknown predictor 'buckt'; nearest: bucket"),
        ({"topology": "2P0D"}, "topology is '2P0D'; it must read like 2P4D"),
        ({"topology": "2P4D2M"}, "topology is '2P4D2M'; it must read like 2P4D"),
        ({"workload": "chat", "format": "azure"}, "format is 'azure', but chat is a workload"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest_ones(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Setting.of(Scenario.make(**values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prefill: {count: 2, profile: a40-qwen2.5-3b}\n", "the decode pool is empty"),
        (
            "mixed: {count: 1, profile: a40-qwen2.5-3b}\nprefill: {count: 1, profile: a40-qwen2.5-3b}\n"
            "decode: {count: 1, profile: a40-qwen2.5-3b}\n",
            "mixed instances stand beside prefill or decode instances",
        ),
    ],
)
def test_a_cluster_that_cannot_run_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Setting.of(Scenario.make(cluster=str(path)))


def test_a_request_that_cannot_fit_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    pool = "{count: 1, profile: a40-qwen2.5-3b, overrides: {num_blocks: 20}}"
    path.write_text(f"name: small\nprefill: {pool}\ndecode: {pool}\n")
    setting = Setting.of(Scenario.make(cluster=str(path), rate=20, duration_s=20))
    with pytest.raises(ValueError, match=r"request \d+ .* needs \d+ KV blocks; \w+ instance \d+ .* has 20"):
        setting.prepare(0)


def test_a_workload_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="rate is missing"):
        Setting.of(Scenario.make(workload="chat")).prepare(0)


def test_a_window_without_arrivals_is_refused() -> None:
    setting = Setting.of(Scenario.make(workload="chat", rate=0.001, duration_s=1, warmup_s=0))
    with pytest.raises(ValueError, match="no request arrives in the measurement window"):
        setting.prepare(0)


def test_wrong_router_constants_change_the_configuration_and_not_the_cluster() -> None:
    right, wrong = (Setting.of(Scenario.make(rate=20, constants_scale=scale)) for scale in (1.0, 1 / 7.4))
    assert np.allclose(wrong.constants.tau_decode * 7.4, right.constants.tau_decode)
    assert right.configuration()["cluster"]["content"] == wrong.configuration()["cluster"]["content"]
    assert fingerprint(right.configuration()) != fingerprint(wrong.configuration())


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 21},
        {"duration_s": 200},
        {"warmup_s": 30},
        {"predictor": "oracle"},
        {"topology": "2P5D"},
        {"routers": 2},
        {"dealing": "random"},
        {"workload": "chat"},
        {"targets": "relative"},
    ],
)
def test_everything_that_changes_a_number_changes_the_key(change: dict[str, object]) -> None:
    base = Setting.of(Scenario.make(rate=20)).configuration()
    other = Setting.of(Scenario.make(**({"rate": 20} | change))).configuration()
    assert fingerprint(base) != fingerprint(other)


def test_the_gpus_of_an_instance_count(tmp_path: Path) -> None:
    setting = Setting.of(Scenario.make(topology="1P1D", profile="h100-llama-3.1-70b", rate=1))
    assert setting.gpus > 2


def test_a_trace_file_is_used_whole_at_its_own_rate(trace_file: str) -> None:
    setting = Setting.of(Scenario.make(workload=trace_file, warmup_s=10))
    prepared = setting.prepare(0)
    assert setting.traffic.single and setting.traffic.own_rate == pytest.approx(2.0)
    assert len(prepared.trace) == 100 and prepared.window.holds(prepared.trace).sum() == 80
    assert setting.name.startswith("recorded-2p4d")


def test_a_trace_file_is_stretched_to_a_rate_and_cut_to_a_duration(trace_file: str) -> None:
    setting = Setting.of(Scenario.make(workload=trace_file, rate=10, warmup_s=1, duration_s=4))
    prepared = setting.prepare(0)
    assert len(prepared.trace) == 50 and prepared.window.holds(prepared.trace).sum() == 40


def test_the_report_of_a_trace_file_says_what_was_left_out(trace_file: str) -> None:
    setting = Setting.of(Scenario.make(workload=trace_file))
    report = setting.traffic.report(None)
    assert "100 of 100 requests" in report and "infeasible" in report


def test_a_trace_file_is_one_trace(trace_file: str) -> None:
    setting = Setting.of(Scenario.make(workload=trace_file))
    setting.check_seeds(range(5, 6))
    with pytest.raises(ValueError, match="seeds is 2; recorded is one trace"):
        setting.check_seeds(range(2))


def test_a_warm_up_longer_than_the_trace_is_refused(trace_file: str) -> None:
    with pytest.raises(ValueError, match=r"warmup is 60 s, but recorded ends after 49\.5 s"):
        Setting.of(Scenario.make(workload=trace_file)).prepare(0)


def test_the_same_trace_in_another_folder_is_the_same_experiment(trace_file: str, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "recorded.csv"
    copy.parent.mkdir()
    copy.write_text(ROWS)
    keys = {
        fingerprint(Setting.of(Scenario.make(workload=path, warmup_s=1)).configuration())
        for path in (trace_file, str(copy))
    }
    assert len(keys) == 1


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    scenario = Scenario.make(cluster=str(path), rate=1)
    for count in (1, 12):
        pool = "profile: a40-qwen2.5-3b"
        path.write_text(f"prefill: {{count: {count}, {pool}}}\ndecode: {{count: 1, {pool}}}\n")
        assert Setting.of(scenario).pools["prefill"] == count


def test_a_workload_brings_the_cluster_that_it_is_meant_for() -> None:
    assert Setting.of(Scenario.make(workload="mixed-bursty")).cluster.name == "2p4d-a40-30k"
    assert Setting.of(Scenario.make(workload="mixed-bursty", topology="1P2D")).cluster.name == "1p2d-a40-qwen2.5-3b"
    assert Setting.of(Scenario.make(workload="mixed-bursty", cluster="2p6d-a40")).cluster.name == "2p6d-a40"
