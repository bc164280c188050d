"""What a calibration writes: a profile that loads, the cluster that believes in it, numbers and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import profiles
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.live.calibration import result as result_module
from disaggroute.live.calibration.fits import Sizes, fits_of
from disaggroute.live.calibration.profile_document import Calibrated, profile_name
from disaggroute.live.calibration.result import Result
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engine import Engine

from .planted import SPEC, planted


@pytest.fixture(autouse=True)
def _drawn_only_where_it_is_looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "picture" not in request.node.name:
        monkeypatch.setattr(result_module, "png_bytes", lambda *_: b"")


def made(*, pairs: bool = True, cluster: Mapping[str, Any] | None = None, **options: Any) -> Result:
    pools = {"prefill": 2, "decode": 2} if pairs else {"mixed": 2}
    ports = iter(range(9000, 9100))
    entries = {role: [{"url": f"http://h:{next(ports)}"} for _ in range(count)] for role, count in pools.items()}
    fields = {"name": "ours", "model": "m", "profile": "h100-qwen3-8b", "lease_s": 20, **entries, **(cluster or {})}
    live = LiveCluster.load(fields)
    engines = []
    for role, k, entry in live.engines():
        engine = Engine.of(role, live.engine_name(role, k), entry, faults=1, pause_s=1.0)
        engine.blocks, engine.block_size, engine.max_model_len = 3750 - k, 16, 32_768
        engines.append(engine)
    rows = planted(pairs=pairs, **options)
    fits = fits_of(rows, Sizes(SPEC.max_num_batched_tokens, SPEC.block_size), 5)
    return Result.of(Calibrated("ours", "a GPU", live, engines, len(rows)), fits)


def close(path: Path, factor: float = 1.0) -> None:
    """The profile there has the planted step times, times a factor."""
    spec = profiles.load(path).engine()
    for sequences, context in ((1, 100), (64, 64_000)):
        planted_step = SPEC.step_time(sequences, context) * factor
        assert spec.step_time(sequences, context) == pytest.approx(planted_step, rel=1e-4)


def test_the_profile_loads_and_has_the_engines_times_sizes_and_targets(tmp_path: Path) -> None:
    path = made().write(tmp_path)
    assert path == tmp_path / "ours.yaml"
    close(path)
    profile = profiles.load(path)
    spec = profile.engine()
    assert spec.prompt_time(1000) == pytest.approx(SPEC.prompt_time(1000), rel=1e-4)
    assert (spec.egress_per_block, spec.latency) == pytest.approx((SPEC.egress_per_block, SPEC.latency), rel=1e-4)
    assert (spec.num_blocks, spec.block_size, spec.max_model_len) == (3749, 16, 32_768)
    assert spec.lease == 20 * PS_PER_S and profile.memory.kv_bytes_per_token == 36_864
    assert profile.gpu == "a GPU" and profile.model == "m"
    # Tight is 3 times unloaded, loose 3 times tight.
    targets = profile.slo_targets
    assert targets.ttft[0] == pytest.approx(3 * SPEC.prompt_time(1000), rel=1e-4)
    assert targets.tpot[0] == pytest.approx(3 * SPEC.step_time(1, 1024), rel=1e-4)
    assert targets.ttft[1] == 3 * targets.ttft[0] and targets.tpot[1] == 3 * targets.tpot[0]


def test_every_constant_says_where_it_comes_from_and_how_well_it_fits(tmp_path: Path) -> None:
    profile = profiles.load(made(noise=0.02, late=[10]).write(tmp_path))
    for name in profile.constants():
        source = profile.source(name)
        fitted = name.startswith("step.") or name in ("transfer.egress_gb_per_s", "transfer.latency_ms")
        assert fitted == (source.error_mean is not None and 0.001 < source.error_mean < 0.05), name
        assert source.assumed == (name.startswith("limits.max_num") or name == "transfer.lease_s"), name
    assert "1 of 42 set aside" in profile.source("step.prefill_base_ms").text
    assert "h100-qwen3-8b" in profile.source("limits.max_num_seqs").text


def test_the_cluster_is_read_from_everywhere_and_wherever_its_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(slow={"decode/1": 1.3}).write(Path("calibrations/ours"))
    there = (tmp_path / "calibrations").rename(tmp_path / "kept")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for file in (there / "ours/cluster.yaml", Path("../kept/ours/cluster.yaml")):
        cluster = LiveCluster.load(file)
        assert cluster.profile == str(there / "ours/ours.yaml")
        assert Path(str(cluster.decode[1].profile)).parent == there / "ours"


def test_the_cluster_believes_in_the_profile(tmp_path: Path) -> None:
    path = made(cluster={"slo": None}).write(tmp_path)
    cluster = LiveCluster.load(tmp_path / "cluster.yaml")
    assert cluster.profile == str(path) and cluster.lease_s == 20
    assert [entry.url for _, _, entry in cluster.engines()] == [f"http://h:{9000 + k}" for k in range(4)]


def test_an_engine_that_deviates_gets_a_profile_and_a_warning(tmp_path: Path) -> None:
    result = made(slow={"decode/1": 1.3})
    result.write(tmp_path)
    cluster = LiveCluster.load(tmp_path / "cluster.yaml")
    close(Path(cluster.profile))
    assert cluster.decode[0].profile is None and cluster.decode[1].profile is not None
    close(Path(cluster.decode[1].profile), 1.3)
    own = result.own["decode/1"]
    assert ", 21 measurements" in own.source("step.decode_base_ms").text, "its own, not its pool's"
    assert ", 42 measurements" in own.source("step.prefill_base_ms").text
    (warning,) = [text for text in result.remarks() if text.startswith("warning")]
    assert "decode steps of decode/1 take 1.30 times what its pool's take (more than 10% off)" in warning


def test_slow_transfers_of_an_engine_become_its_overrides(tmp_path: Path) -> None:
    rows = made(slow={"prefill/1": 2.0})
    rows.write(tmp_path)
    entry = LiveCluster.load(tmp_path / "cluster.yaml").prefill[1]
    assert entry.overrides.egress_gb_per_s == pytest.approx(10, rel=1e-3)
    assert entry.overrides.latency_ms == pytest.approx(2, rel=1e-3)


def test_without_pairs_the_transfer_stays_as_it_was_believed(tmp_path: Path) -> None:
    profile = profiles.load(made(pairs=False).write(tmp_path))
    before = profiles.load("h100-qwen3-8b")
    assert profile.transfer.egress_gb_per_s == before.transfer.egress_gb_per_s
    assert profile.source("transfer.egress_gb_per_s").assumed
    assert profile.source("memory.kv_bytes_per_token").assumed
    close(tmp_path / "ours.yaml")


def test_numbers_picture_and_tables_say_what_was_found(tmp_path: Path) -> None:
    result = made(noise=0.01)
    result.write(tmp_path)
    numbers = json.loads((tmp_path / "fits.json").read_text())
    base = numbers["constants"]["step.decode_base_ms"]
    assert base["value"] == pytest.approx(13.106, rel=0.01) and 0 < base["standard_error"] < 0.3
    assert numbers["fits"]["decode"]["measurements"] == 42
    assert numbers["prefill_times"] == numbers["transfer_times"] == "the engines' own count"
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert len(result.tables()) == 3
    assert any(text.startswith("h100-qwen3-8b predicts these decode steps") for text in result.remarks())


@pytest.mark.parametrize("options", [{"pairs": False}, {"told": False, "noise": 0.05, "late": [5, 50]}])
def test_the_picture_is_drawn_whatever_was_measured(tmp_path: Path, options: dict[str, Any]) -> None:
    made(**options).write(tmp_path)
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_a_profile_is_named_after_its_cluster_or_as_asked() -> None:
    assert profile_name(None, "My Cluster, 2P4D") == "my-cluster-2p4d"
    assert profile_name(None, "…") == "calibrated"
    assert profile_name(None, "Cluster") == "calibrated"
    assert profile_name("a40-x.1", "c") == "a40-x.1"
    with pytest.raises(ValueError, match="name is 'A 40'; it must be lower-case letters, digits, dots and hyphens"):
        profile_name("A 40", "c")


def test_many_measurements_that_were_set_aside_are_a_warning() -> None:
    few, many = made(noise=0.002, late=range(4, 200, 20)), made(noise=0.002, late=range(4, 200, 4))
    assert not any("set aside" in text for text in few.remarks())
    warnings = [text for text in many.remarks() if "set aside" in text]
    assert any("of 42 measurements of prefills were set aside" in text and "fit.png" in text for text in warnings)


def test_a_profile_cannot_take_the_file_of_the_cluster_beside_it() -> None:
    with pytest.raises(ValueError, match=r"name is 'cluster', but cluster\.yaml is the cluster's file"):
        profile_name("cluster", "c")
