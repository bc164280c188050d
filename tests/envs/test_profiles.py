from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs import catalog, profiles
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.envs.profiles import Profile


def a40(**changes: Any) -> Profile:
    data = catalog.merge(catalog.read("profiles", "a40-qwen2.5-3b"), changes)
    return catalog.validate(Profile, data, "a40")


def test_the_a40_profile_has_the_published_targets() -> None:
    targets = profiles.load("a40-qwen2.5-3b").slo_targets
    assert targets.ttft == (175_000_000_000, 525_000_000_000)
    assert targets.tpot == (39_700_000_000, 119_100_000_000)


def test_the_a40_profile_becomes_integers_to_the_picosecond() -> None:
    engine = profiles.load("a40-qwen2.5-3b").engine()
    assert (engine.base_decode, engine.base_prefill) == (13_106_000_000, 9_830_000_000)
    assert engine.base_mixed == 13_106_000_000
    assert (engine.batch[1], engine.batch[256]) == (30_870_000, 256 * 30_870_000)
    assert (engine.per_context, engine.per_token, engine.per_token_sq) == (55_310, 49_250_000, 2_267)
    assert (engine.num_blocks, engine.block_size) == (3_750, 16)
    assert engine.egress_per_block == round(16 * 36_864 / 20e9 * PS_PER_S)
    assert (engine.latency, engine.lease) == (1_000_000_000, 30 * PS_PER_S)


def test_without_published_targets_tight_is_three_times_unloaded_and_loose_three_times_tight() -> None:
    profile = a40(slo=None)
    prefill_ms = 9.83 + 0.04925 * 1000 + 2.267e-6 * 1000**2
    step_ms = 13.106 + 0.03087 + 55.31e-6 * 1024
    assert profile.slo_targets.ttft[0] / 1e9 == pytest.approx(3 * prefill_ms, rel=1e-9)
    assert profile.slo_targets.tpot[0] / 1e9 == pytest.approx(3 * step_ms, rel=1e-9)
    assert profile.slo_targets.ttft[1] == 3 * profile.slo_targets.ttft[0]
    assert profile.slo_targets.tpot[1] == 3 * profile.slo_targets.tpot[0]


def test_the_router_constants_are_step_times_of_the_engine() -> None:
    profile = profiles.load("a40-qwen2.5-3b")
    assert profile.tau_decode * 1e3 == pytest.approx(13.106 + 16 * 0.03087 + 16 * 1024 * 55.31e-6)
    assert profile.tau_decode_single * 1e3 == pytest.approx(13.106 + 0.03087 + 1024 * 55.31e-6)
    assert profile.tau_prefill == pytest.approx(profile.prefill_time(1000) / 1000)


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    profile = profiles.load("a40-qwen2.5-3b")
    n = 8193
    assert profile.prefill_time(n) * 1e3 == pytest.approx(2 * 9.83 + 0.04925 * n + 2.267e-6 * n * n)


@pytest.mark.parametrize("name", profiles.names())
def test_every_shipped_profile_loads_and_says_where_its_constants_come_from(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    for constant in profile.constants():
        assert profile.source(constant).text
    assert profile.source("transfer.egress_gb_per_s").assumed
    assert not profile.source("step.decode_base_ms").assumed
    assert profile.source("step.decode_base_ms").error_mean is not None
    engine = profile.engine()
    assert engine.num_blocks * engine.block_size >= 60_000
    assert profile.slo_targets.tpot[0] < profile.slo_targets.ttft[0]


def test_every_gpu_ships_with_every_model() -> None:
    models = ("qwen2.5-3b", "qwen3-8b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b")
    wanted = {f"{gpu}-{model}" for gpu in ("h100", "h200", "a100", "l40s") for model in models}
    assert set(profiles.names()) == wanted | {"a40-qwen2.5-3b", "a40-qwen2.5-3b-half-speed"}


def test_an_engine_at_half_its_speed_takes_twice_as_long_and_has_the_same_targets() -> None:
    half, whole = profiles.load("a40-qwen2.5-3b-half-speed"), profiles.load("a40-qwen2.5-3b")
    assert half.engine().step_time(7, 9_000) == 2 * whole.engine().step_time(7, 9_000)
    assert half.prefill_time(1_000) == 2 * whole.prefill_time(1_000)
    assert half.slo_targets == whole.slo_targets
    assert (half.memory, half.limits, half.transfer) == (whole.memory, whole.limits, whole.transfer)


def test_blocks_follow_from_the_memory_of_the_gpus() -> None:
    profile = profiles.load("h100-qwen3-32b")
    assert profile.num_blocks() == int((0.9 * 2 * 80e9 - 65.524e9) // (16 * 262_144))


def test_overrides_change_the_engine_and_not_the_profile() -> None:
    profile = profiles.load("a40-qwen2.5-3b")
    engine = profile.engine(kv_tokens=1_000, max_num_seqs=8, latency_ms=0.5, block_size=8)
    assert (engine.num_blocks, engine.block_size, len(engine.batch)) == (125, 8, 9)
    assert engine.latency == 500_000_000
    assert engine.egress_per_block == round(8 * 36_864 / 20e9 * PS_PER_S)
    assert profile.engine().num_blocks == 3_750
    assert profile.engine(num_blocks=7).num_blocks == 7


def test_a_table_of_batch_sizes_pads_to_the_next_larger_one() -> None:
    profile = a40(
        step={"per_sequence_us": None, "batch_us": {1: 10, 4: 20, 8: 50}}, limits={"max_num_seqs": 6}
    )
    table = profile.engine().batch
    assert table.tolist() == [0, 10_000_000, 20_000_000, 20_000_000, 20_000_000, 50_000_000, 50_000_000]


def test_the_mixed_base_can_be_given() -> None:
    assert a40(step={"mixed_base_ms": 20}).engine().base_mixed == 20_000_000_000


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": {"decode_base_ms": 0}}, r"step\.decode_base_ms is 0; it must be greater than 0"),
        ({"step": {"batch_us": {1: 1}}}, "two forms of A"),
        ({"step": {"per_sequence_us": None}}, "give exactly one"),
        (
            {"step": {"per_sequence_us": None, "batch_us": {0: 1}}},
            "batch_us lists no batch size or one below 1",
        ),
        ({"step": {"per_sequence_us": None, "batch_us": {1: -1}}}, "batch_us has a negative time"),
        ({"memory": {"kv_tokens": None}}, "the size of the KV cache is missing"),
        ({"limit": {}}, "unknown field 'limit'; nearest: limits"),
        ({"name": "A40"}, "name is 'A40'; it must match pattern"),
        ({"step": {"mixed_base_ms": -1}}, r"step\.mixed_base_ms is -1"),
        ({"sources": {"step.decode_base": {"text": "x"}}}, "unknown constant in sources 'step.decode_base'"),
    ],
)
def test_a_bad_profile_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        a40(**changes)
    assert "\n" not in str(caught.value)


def test_a_constant_without_a_source_is_refused() -> None:
    data = catalog.read("profiles", "a40-qwen2.5-3b")
    del data["sources"]["memory.kv_tokens"]
    with pytest.raises(ValueError, match=r"memory\.kv_tokens has no entry in sources; say where"):
        catalog.validate(Profile, data, "a40")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"kv_token": 1}, "a40-qwen2.5-3b: overrides: unknown field 'kv_token'; nearest: kv_tokens"),
        ({"kv_tokens": 0}, "kv_tokens is 0; it must be greater than or equal to 1"),
        ({"kv_tokens": 1, "num_blocks": 1}, "num_blocks and kv_tokens both set the size"),
        ({"kv_tokens": 15}, "the KV cache has room for 0 blocks; it must hold at least 1"),
        ({"max_num_batched_tokens": 255}, r"max_num_batched_tokens is 255; it must be at least max_num_seqs"),
    ],
)
def test_a_bad_override_is_refused_in_one_sentence(overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        profiles.load("a40-qwen2.5-3b").engine(**overrides)


def test_a_table_that_ends_too_early_is_refused() -> None:
    profile = a40(step={"per_sequence_us": None, "batch_us": {8: 50}})
    with pytest.raises(
        ValueError, match=r"step\.batch_us ends at batch size 8; it must reach max_num_seqs \(256\)"
    ):
        profile.engine()


def test_weights_that_fill_the_memory_are_refused() -> None:
    data = catalog.read("profiles", "h100-qwen3-8b")
    small = catalog.validate(Profile, catalog.merge(data, {"memory": {"gpu_gb": 16}}), "small")
    with pytest.raises(ValueError, match=r"h100-qwen3-8b: the KV cache has room for -\d+ blocks"):
        small.engine()


def test_a_profile_is_read_from_a_path(tmp_path: Path) -> None:
    import yaml

    data = catalog.read("profiles", "a40-qwen2.5-3b") | {"name": "mine"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    assert profiles.load(tmp_path / "mine.yaml").name == "mine"
    assert profiles.resolve(profiles.load("a40-qwen2.5-3b")).name == "a40-qwen2.5-3b"
