"""Live cluster files: what they say, and a sentence for each that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.envs import catalog, profiles
from disaggroute.envs.cluster import PS_PER_S
from disaggroute.live.cluster_file import LiveCluster

PROFILE = "a40-qwen2.5-3b"


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def fields(**changes: Any) -> dict[str, Any]:
    """A good cluster with some fields changed; `...` takes one away."""
    good: dict[str, Any] = {
        "model": "tiny",
        "profile": PROFILE,
        "prefill": [{"url": url(8100)}],
        "decode": [{"url": url(8101)}, {"url": url(8102)}],
    }
    return {key: value for key, value in (good | changes).items() if value is not ...}


def loaded(**changes: Any) -> LiveCluster:
    return LiveCluster.load(fields(**changes))


# --- what it says ---------------------------------------------------------------------------------------------------


def test_a_cluster_has_its_engines_in_order_with_names_of_their_role_and_index() -> None:
    cluster = loaded(decode=[{"url": url(8101), "name": "left"}, {"url": url(8102)}])
    engines = list(cluster.engines())
    assert [(role, k) for role, k, _ in engines] == [("prefill", 0), ("decode", 0), ("decode", 1)]
    assert [cluster.engine_name(role, k) for role, k, _ in engines] == ["prefill/0", "left", "decode/1"]
    assert [engine.address for _, _, engine in engines] == [("127.0.0.1", port) for port in (8100, 8101, 8102)]
    assert (cluster.name, cluster.tokenizer, cluster.lease_s, cluster.block_size) == ("live", "engine", 30.0, None)


def test_a_cluster_of_mixed_engines_has_one_pool() -> None:
    cluster = loaded(prefill=..., decode=..., mixed=[{"url": url(8100)}])
    assert [(role, k) for role, k, _ in cluster.engines()] == [("mixed", 0)]


@pytest.mark.parametrize(
    ("written", "kept", "address"),
    [
        ("http://host:81/", "http://host:81", ("host", 81)),
        ("http://Host", "http://Host", ("host", 80)),
        ("https://host", "https://host", ("host", 443)),
        ("http://[::1]:81", "http://[::1]:81", ("::1", 81)),
        ("http://host:81/engines/one/", "http://host:81/engines/one", ("host", 81)),
    ],
)
def test_an_address_may_be_written_in_several_ways(written: str, kept: str, address: tuple[str, int]) -> None:
    (_, _, engine), *_ = loaded(prefill=[{"url": written}]).engines()
    assert (engine.url, engine.address) == (kept, address)


def test_targets_come_from_the_profile_or_the_file() -> None:
    assert loaded().targets == profiles.load(PROFILE).slo_targets
    slo = {"tight": {"ttft_s": 0.5, "tpot_s": 0.05}, "loose": {"ttft_s": 2, "tpot_s": 0.1}}
    targets = loaded(slo=slo).targets
    assert targets.ttft == (PS_PER_S // 2, 2 * PS_PER_S)
    assert targets.tpot == (PS_PER_S // 20, PS_PER_S // 10)


@pytest.mark.parametrize("place", ["beside the file", "where the command runs"])
def test_files_that_a_file_names_lie_beside_it_or_where_the_command_runs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "here").mkdir()
    other = tmp_path / ("files" if place == "beside the file" else "here")
    for name in ("all.yaml", "own.yaml"):
        (other / name).write_text(yaml.safe_dump(catalog.read("profiles", PROFILE) | {"name": name[:3]}))
    (other / "qwen").mkdir()
    decode = [{"url": url(8101), "profile": "own.yaml"}, {"url": url(8102)}]
    text = yaml.safe_dump(fields(profile="all.yaml", tokenizer="qwen", decode=decode))
    (tmp_path / "files" / "cluster.yaml").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    cluster = LiveCluster.load("../files/cluster.yaml")
    monkeypatch.chdir(tmp_path)
    assert [cluster.profile_of(entry).name for entry in cluster.decode] == ["own", "all"]
    assert cluster.tokenizer == str(other / "qwen")


def test_an_engine_may_have_a_profile_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(catalog.read("profiles", PROFILE) | {"name": "own"}))
    cluster = loaded(prefill=[{"url": url(8100), "profile": str(own)}])
    (_, _, first), (_, _, second), _ = cluster.engines()
    assert cluster.profile_of(first).name == "own"
    assert cluster.profile_of(second).name == PROFILE


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(fields(name="mine")))
    assert LiveCluster.load(file) == LiveCluster.load(str(file)) == loaded(name="mine")


def test_a_file_whose_engines_are_to_be_started_has_no_addresses_yet() -> None:
    with pytest.raises(ValueError, match=r"^cpu-smoke: its engines have no addresses before `disaggroute live"):
        LiveCluster.load("cpu-smoke")
    with pytest.raises(ValueError, match=r"^live cluster: its engines have no addresses before `disaggroute live up`$"):
        LiveCluster.load(fields() | {"launch": {"kind": "emulator"}})


# --- what it cannot be ----------------------------------------------------------------------------------------------

LIKE = "is no address; it must be like http://host:port"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": ...}, "model is missing; it is required"),
        ({"model": ""}, "model is ''; it must have at least 1 character"),
        ({"model": None}, "model is None; it must be a valid string"),
        ({"profile": ...}, "profile is missing; it is required"),
        ({"prefill": [{}]}, "prefill.0.url is missing; it is required"),
        ({"prefill": ...}, "prefill is empty; a cluster has prefill and decode engines, or mixed ones"),
        ({"decode": ...}, "decode is empty; a cluster has prefill and decode engines, or mixed ones"),
        ({"decode": []}, "decode is empty; a cluster has prefill and decode engines, or mixed ones"),
        (
            {"prefill": ..., "decode": ...},
            "prefill is empty; a cluster has prefill and decode engines, or mixed ones",
        ),
        (
            {"mixed": [{"url": url(8103)}]},
            "mixed engines stand beside prefill or decode ones; a cluster has either",
        ),
        (
            {"decode": ..., "mixed": [{"url": url(8103)}]},
            "mixed engines stand beside prefill or decode ones; a cluster has either",
        ),
        ({"encode": [{"url": url(8103)}]}, "unknown field 'encode'; nearest: decode, model"),
        ({"decode": [{"url": url(8101), "role": "decode"}]}, "unknown field of decode.0 'role'; nearest: profile, url"),
        (
            {"decode": [{"url": url(8101), "overrides": {"blocks": 5}}]},
            "unknown field of decode.0.overrides 'blocks'; nearest: num_blocks, block_size",
        ),
        (
            {"decode": [{"url": url(8101)}, {"url": url(8101)}]},
            f"decode/1 has the address of decode/0 ({url(8101)}); each needs its own",
        ),
        ({"decode": [{"url": url(8100)}]}, f"decode/0 has the address of prefill/0 ({url(8100)}); each needs its own"),
        (
            {"prefill": [{"url": "http://HOST"}], "decode": [{"url": "http://host:80/"}]},
            "decode/0 has the address of prefill/0 (http://host:80); each needs its own",
        ),
        (
            {"prefill": [{"url": url(8100), "name": "a"}], "decode": [{"url": url(8101), "name": "a"}]},
            "the name 'a' stands twice; each engine needs its own",
        ),
        (
            {"prefill": [{"url": url(8100), "name": "decode/1"}]},
            "the name 'decode/1' stands twice; each engine needs its own",
        ),
        ({"prefill": [{"url": url(8100), "name": ""}]}, "prefill.0.name: '' must be 1 to 100 printable characters"),
        ({"name": "a\nb"}, "name: 'a\\nb' must be 1 to 100 printable characters"),
        ({"prefill": [{"url": "127.0.0.1:8100"}]}, f"prefill.0.url: '127.0.0.1:8100' {LIKE}"),
        ({"prefill": [{"url": "ftp://host:1"}]}, f"prefill.0.url: 'ftp://host:1' {LIKE}"),
        ({"prefill": [{"url": "http://"}]}, f"prefill.0.url: 'http://' {LIKE}"),
        ({"prefill": [{"url": "http://host:0"}]}, f"prefill.0.url: 'http://host:0' {LIKE}"),
        ({"prefill": [{"url": "http://host:70000"}]}, f"prefill.0.url: 'http://host:70000' {LIKE}"),
        ({"prefill": [{"url": "http://host:port"}]}, f"prefill.0.url: 'http://host:port' {LIKE}"),
        ({"prefill": [{"url": "http://[::1"}]}, f"prefill.0.url: 'http://[::1' {LIKE}"),
        ({"prefill": [{"url": "http://me:key@host:1"}]}, f"prefill.0.url: 'http://me:key@host:1' {LIKE}"),
        ({"prefill": [{"url": "http://host:1?a=b"}]}, f"prefill.0.url: 'http://host:1?a=b' {LIKE}"),
        (
            {"prefill": [{"url": "http://host:8100/v1/"}]},
            "prefill.0.url: 'http://host:8100/v1/' is no address; it must end before /v1, which the router adds",
        ),
        (
            {"prefill": [{"url": "http://ho\nst:1"}]},
            "prefill.0.url: 'http://ho\\nst:1' is no address; it must be printable ASCII characters without spaces",
        ),
        ({"prefill": [{"url": 8100}]}, "prefill.0.url is 8100; it must be a valid string"),
        ({"prefill": {"url": url(8100)}}, f"prefill is {{'url': '{url(8100)}'}}; it must be a valid list"),
        ({"lease_s": float("nan")}, "lease_s is nan; it must be a finite number"),
        ({"lease_s": float("inf")}, "lease_s is inf; it must be a finite number"),
        ({"lease_s": 0.5}, "lease_s is 0.5; it must be greater than or equal to 1"),
        ({"lease_s": True}, "lease_s is True; it must be a number"),
        ({"time_scale": 0}, "time_scale is 0; it must be greater than 0"),
        ({"block_size": 0}, "block_size is 0; it must be greater than or equal to 1"),
        ({"max_model_len": 1}, "max_model_len is 1; it must be greater than or equal to 2"),
        ({"tokenizer": ""}, "tokenizer is ''; it must have at least 1 character"),
        ({"first_token": "prefill"}, "first_token is 'prefill'; it must be 'decode'"),
        ({"slo": {"tight": {"ttft_s": 1}}}, "slo.tight.tpot_s is missing; it is required"),
        (
            {"slo": {"tight": {"ttft_s": 0, "tpot_s": 1}, "loose": {"ttft_s": 1, "tpot_s": 1}}},
            "slo.tight.ttft_s is 0; it must be greater than 0",
        ),
        (
            {"prefill": [{"url": url(8100), "overrides": {"num_blocks": 5, "kv_tokens": 80}}]},
            "prefill.0.overrides: num_blocks and kv_tokens both set the size of the KV cache; give one",
        ),
    ],
)
def test_each_bad_field_has_its_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        loaded(**changes)
    assert str(refused.value) == f"live cluster: {sentence}"


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"profile": "a40-qwen2.5-3"}, "profile: unknown profile 'a40-qwen2.5-3'; nearest: a40-qwen2.5-3b"),
        (
            {"decode": [{"url": url(8101), "profile": "a40-qwen2.5-3"}]},
            "decode/0: unknown profile 'a40-qwen2.5-3'; nearest: a40-qwen2.5-3b",
        ),
        (
            {"decode": [{"url": url(8101), "name": "left", "profile": "none.yaml"}]},
            "left: none.yaml",
        ),
        (
            {"decode": [{"url": url(8101), "overrides": {"max_num_batched_tokens": 5}}]},
            "decode/0: a40-qwen2.5-3b: max_num_batched_tokens is 5; it must be at least max_num_seqs (256)",
        ),
    ],
)
def test_a_profile_that_is_not_there_or_does_not_fit_is_refused_with_the_engine(
    changes: dict[str, Any], start: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as refused:
        loaded(**changes)
    assert str(refused.value).startswith(f"live cluster: {start}")
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(fields(**changes)))
    with pytest.raises(ValueError) as refused:
        LiveCluster.load(file)
    assert str(refused.value).startswith(f"{file}: {start}")


@pytest.mark.parametrize("content", ["", "- 1\n", "model: [", "5"])
def test_a_file_that_holds_no_cluster_is_refused_by_its_path(tmp_path: Path, content: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"cluster\.yaml"):
        LiveCluster.load(file)


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^unknown live cluster 'nowhere'; .*; a path ends in \.yaml$"):
        LiveCluster.load("nowhere")
