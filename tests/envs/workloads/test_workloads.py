from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import catalog, cluster_config, profiles, unloaded, workloads
from disaggroute.envs.trace import Trace

COLUMNS = ("prompt", "output", "slo", "family")


def shares(trace: Trace) -> np.ndarray:
    return np.bincount(trace.family, minlength=len(trace.families)) / len(trace)


@pytest.mark.parametrize("name", workloads.names())
def test_every_shipped_workload_generates(name: str) -> None:
    workload = workloads.make(name)
    trace = workload.generate(rate=10, duration_s=300, seed=0)
    assert trace.name == workload.name == name
    assert trace.prompt.dtype == trace.output.dtype == np.int32
    assert set(trace.families) == set(workload.families)


@pytest.mark.parametrize(
    ("name", "tight", "prompts", "longest_output"),
    [
        ("chat", 0.8, (4, 1024), 8192),
        ("document", 0.2, (1, 4096), 8192),
        ("reasoning", 0.4, (16, 1024), 8192),
    ],
)
def test_families_have_the_published_bounds_and_classes(
    name: str, tight: float, prompts: tuple[int, int], longest_output: int
) -> None:
    trace = workloads.make(name).generate(rate=100, duration_s=1000, seed=1)
    assert (trace.slo == 0).mean() == pytest.approx(tight, abs=0.01)
    assert trace.prompt.min() >= prompts[0]
    assert trace.prompt.max() <= prompts[1]
    assert trace.output.max() <= longest_output
    assert (trace.prompt == prompts[1]).mean() < 0.01


def test_the_mean_length_is_the_one_foretold() -> None:
    workload = workloads.make("mixed-bursty-a40")
    trace = workload.generate(rate=100, duration_s=2000, seed=1)
    assert workload.mean_tokens() == pytest.approx((trace.prompt.mean(), trace.output.mean()), rel=0.02)


def test_the_mix_has_its_shares() -> None:
    trace = workloads.make("mixed-bursty-a40").generate(rate=100, duration_s=1000, seed=0)
    assert trace.families == ("chat", "document", "reasoning")
    assert shares(trace) == pytest.approx([0.60, 0.25, 0.15], abs=0.01)


def test_what_a_request_is_depends_neither_on_the_rate_nor_on_the_duration() -> None:
    workload = workloads.make("mixed-bursty-a40")
    base = workload.generate(rate=5, duration_s=600, seed=3)
    for other in (workload.generate(7.5, 600, 3), workload.generate(5, 900, 3)):
        n = min(len(base), len(other))
        for column in COLUMNS:
            assert (getattr(base, column)[:n] == getattr(other, column)[:n]).all()


def test_the_arrival_process_does_not_touch_what_a_request_is() -> None:
    usual, stress = (
        workloads.make(name).generate(rate=5, duration_s=600, seed=3)
        for name in ("reasoning", "reasoning-stress")
    )
    n = min(len(usual), len(stress))
    assert (usual.output[:n] == stress.output[:n]).all()
    assert (usual.arrival[:n] != stress.arrival[:n]).any()


def test_changing_the_classes_changes_no_length() -> None:
    usual = workloads.make("chat").generate(5, 600, 0)
    strict = workloads.make("chat", tight_share=1.0).generate(5, 600, 0)
    assert (strict.slo == 0).all()
    assert (usual.prompt == strict.prompt).all()


def test_seeds_give_different_requests_and_the_same_seed_the_same() -> None:
    workload = workloads.make("chat")
    one, again, other = (workload.generate(5, 100, seed) for seed in (1, 1, 2))
    assert (one.arrival == again.arrival).all()
    assert (one.prompt == again.prompt).all()
    assert not np.array_equal(one.arrival, other.arrival)


def test_fixed_targets_are_the_profiles_by_class() -> None:
    workload = workloads.make("chat")
    for profile in ("a40-qwen2.5-3b", "h100-qwen3-8b"):
        trace = workload.generate(5, 100, 0, profile)
        expected = profiles.load(profile).slo_targets
        assert (trace.ttft_target == np.array(expected.ttft)[trace.slo]).all()
        assert (trace.tpot_target == np.array(expected.tpot)[trace.slo]).all()


def test_relative_targets_make_every_request_feasible_alone() -> None:
    workload = workloads.make("document", targets="relative")
    cluster = cluster_config.load("2p4d-a40").build()
    trace = workload.generate(5, 500, 0, cluster=cluster)
    assert (trace.ttft_target % 3 == 0).all()
    assert unloaded.ceiling(trace, cluster) == 1.0
    assert (workload.generate(5, 500, 0).ttft_target == trace.ttft_target).all()


def test_a_million_requests_are_lean() -> None:
    trace = workloads.make("mixed-bursty-a40").generate(rate=1000, duration_s=1000, seed=0)
    assert len(trace) > 600_000
    bytes_each = sum(getattr(trace, c).itemsize for c in (*COLUMNS, "arrival", "ttft_target", "tpot_target"))
    assert bytes_each == 34


def test_overrides_go_into_the_configuration() -> None:
    assert workloads.make("reasoning", arrivals={"cv": 5.6}).config.arrivals.cv == 5.6  # type: ignore[union-attr]
    replaced = workloads.make("reasoning", arrivals={"process": "poisson"}).config.arrivals
    assert replaced.process == "poisson"
    assert workloads.make("mixed-bursty-a40", mix={"chat": 3, "document": 1}).shares == (0.75, 0.25)
    assert workloads.make(workloads.make("chat").config, tight_share=0.1).config.tight_share == 0.1


def test_a_file_may_build_on_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: chat\nname: mine\ntight_share: 0.5\n")
    mine = workloads.make(tmp_path / "mine.yaml").config
    assert mine.prompt == workloads.make("chat").config.prompt
    assert (mine.name, mine.tight_share) == ("mine", 0.5)


def test_a_workload_of_ones_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_registered", {})
    (tmp_path / "mine.yaml").write_text("base: chat\nname: mine\n")
    workloads.register("mine", tmp_path / "mine.yaml")
    assert workloads.make("mixed-bursty-a40", mix={"mine": 1, "reasoning": 1}).shares == (0.5, 0.5)


def test_a_base_that_leads_back_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: {path}\nname: mine\n")
    with pytest.raises(ValueError, match="base leads back to itself"):
        workloads.make(path)


@pytest.mark.parametrize(
    ("name", "overrides", "sentence"),
    [
        ("chatt", {}, "unknown workload 'chatt'; nearest: chat"),
        ("chat", {"tight": 0.5}, "chat: unknown field 'tight'; nearest: tight_share"),
        ("chat", {"tight_share": 1.5}, r"tight_share is 1\.5; it must be less than or equal to 1"),
        ("chat", {"prompt": None}, "prompt is missing; give prompt, output and tight_share, or a mix"),
        ("chat", {"mix": {"chat": 1}}, "mix stands beside prompt, output or tight_share"),
        ("chat", {"targets": "strict"}, "targets is 'strict'; it must be 'fixed' or 'relative'"),
        ("chat", {"arrivals": {"cv": 0}}, r"cv is 0; it must be greater than or equal to 0.01"),
        (
            "chat",
            {"arrivals": {"process": "uniform"}},
            r"arrivals\.process is 'uniform'; it must be one of 'poisson'",
        ),
        ("mixed-bursty-a40", {"mix": {}}, "mix has 0 families"),
        ("mixed-bursty-a40", {"mix": {"chat": 0}}, "mix.chat is 0.0; a share must be greater than 0"),
        ("mixed-bursty-a40", {"mix": {"chatt": 1}}, "unknown workload 'chatt'"),
        ("mixed-bursty-a40", {"mix": {"mixed-bursty-a40": 1}}, "a mix itself; name single families"),
        ("mixed-bursty-a40", {"arrivals": {"on_fraction": 1}}, r"on_fraction is 1; it must be less than 1"),
        (
            "mixed-bursty-a40",
            {"arrivals": {"ratio": 0.5}},
            r"ratio is 0\.5; it must be greater than or equal to 1",
        ),
    ],
)
def test_a_bad_workload_is_refused_in_one_sentence(
    name: str, overrides: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        workloads.make(name, **overrides)
    assert "\n" not in str(caught.value)


def test_an_unknown_profile_is_refused_when_generating() -> None:
    with pytest.raises(ValueError, match="unknown profile 'a41'"):
        workloads.make("chat").generate(1, 10, 0, "a41")
