from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import catalog, profile_import, profiles

FIT = {
    "t_pre_ms": [5.0, 0.02, 1e-6],
    "t_pre_mean_err": 0.01,
    "t_pre_max_err": 0.02,
    "t_step_ms": [6.0, 0.01, 2e-5],
    "t_step_mean_err": 0.03,
    "t_step_max_err": 0.04,
}
KEY = "Qwen/Qwen3-8B|tp1|h100_sxm|vllm|bf16"


def fits(path: Path, entries: Any) -> Path:
    path.write_text(json.dumps({"aiconfigurator_fits": entries}))
    return path


def test_a_fit_becomes_a_profile_with_its_errors(tmp_path: Path) -> None:
    (profile,) = profile_import.read_fits(fits(tmp_path / "f.json", {KEY: FIT}))
    assert profile.name == "h100-qwen3-8b"
    assert (profile.step.decode_base_ms, profile.step.per_sequence_us) == (6.0, 10.0)
    assert (profile.step.per_context_token_ns, profile.step.per_prefill_token_sq_ns) == (20.0, 1.0)
    assert profile.source("step.per_sequence_us").error_max == 0.04
    assert profile.source("step.per_prefill_token_us").error_max == 0.02
    assert profile.memory.kv_bytes_per_token == 147_456


def test_what_is_written_is_what_is_read_back(tmp_path: Path) -> None:
    (profile,) = profile_import.read_fits(fits(tmp_path / "f.json", {KEY: FIT}))
    assert profiles.load(profile_import.write(profile, tmp_path / "out")) == profile


def test_the_shipped_profiles_are_what_the_import_makes(shared_data: Path, tmp_path: Path) -> None:
    made = profile_import.read_fits(shared_data / "profiles" / "profiles.json")
    assert len(made) == 20
    for profile in made:
        written = profile_import.write(profile, tmp_path)
        assert catalog.read("profiles", written) == catalog.read("profiles", profile.name)


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({}, "has no entries under 'aiconfigurator_fits'"),
        ({"Qwen/Qwen3-8B": FIT}, r"must read MODEL\|tpN\|GPU\|ENGINE\|DTYPE"),
        ({KEY.replace("3-8B", "3-9B"): FIT}, "unknown model 'Qwen/Qwen3-9B'; nearest: Qwen/Qwen3-8B"),
        ({KEY.replace("h100_sxm", "h100_pcie"): FIT}, "unknown GPU 'h100_pcie'; nearest: h100_sxm"),
        ({KEY: FIT | {"t_pre_ms": [1, 2]}}, "t_pre_ms must be a list of three numbers, in ms"),
        ({KEY: FIT | {"t_step_ms": None}}, "t_step_ms must be a list of three numbers, in ms"),
        (
            {KEY: {k: v for k, v in FIT.items() if k != "t_pre_max_err"}},
            "lacks the fit error 't_pre_max_err'",
        ),
        ({KEY: FIT | {"t_step_ms": [0, 1, 1]}}, r"step\.decode_base_ms is 0\.0; it must be greater than 0"),
    ],
)
def test_a_bad_fit_is_refused_in_one_sentence(tmp_path: Path, entries: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        profile_import.read_fits(fits(tmp_path / "f.json", entries))


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("{")
    with pytest.raises(ValueError, match=r"f\.json: is not valid JSON"):
        profile_import.read_fits(tmp_path / "f.json")
    with pytest.raises(ValueError, match=r"g\.json: cannot be read \(No such file"):
        profile_import.read_fits(tmp_path / "g.json")
