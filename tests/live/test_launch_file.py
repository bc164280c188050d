"""Clusters whose engines are started: what their files say, and a sentence for each that cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.envs import catalog
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.launch_file import EmulatorLaunch, LaunchFile, VllmLaunch, read

CPU = {"kind": "vllm", "device": "cpu"}
CUDA = {"kind": "vllm", "device": "cuda"}
EMULATOR = {"kind": "emulator"}


def loaded(launch: dict[str, Any] | None = None, **changes: Any) -> LaunchFile:
    fields = {"model": "tiny", "profile": "a40-qwen2.5-3b", "prefill": 1, "decode": 2, "launch": launch or EMULATOR}
    file = read({key: value for key, value in (fields | changes).items() if value is not ...})
    assert isinstance(file, LaunchFile)
    return file


# --- what it says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", catalog.names("live"))
def test_what_ships_can_be_loaded_and_is_named_like_its_file(name: str) -> None:
    cluster = read(name)
    assert cluster.name == name
    assert cluster.targets.ttft[0] > 0


def test_a_file_with_addresses_is_a_cluster_that_runs() -> None:
    fields = {"model": "m", "profile": "a40-qwen2.5-3b", "mixed": [{"url": "http://a:1"}]}
    assert read(fields) == LiveCluster.load(fields)


def test_a_number_stands_for_so_many_engines() -> None:
    file = loaded(decode=[{"name": "big", "overrides": {"max_num_seqs": 512}}, {}])
    assert [file.engine_name(role, k) for role, k, _ in file.engines()] == ["prefill/0", "big", "decode/1"]
    assert loaded(prefill=..., decode=..., mixed=3).mixed == [loaded().prefill[0]] * 3


def test_ports_follow_the_first_one_unless_an_engine_has_its_own() -> None:
    file = loaded(EMULATOR | {"port": 8100}, decode=[{"port": 9000}, {}])
    assert [file.port_of("port", role, k) for role, k, _ in file.engines()] == [8100, 9000, 8102]
    assert {file.port_of("side_channel_port", role, k) for role, k, _ in file.engines()} == {None}


def test_an_engine_of_several_gpus_takes_as_many_ports_of_the_side_channel() -> None:
    file = loaded(CUDA | {"side_channel_port": 5600, "tensor_parallel": 2})
    assert [file.port_of("side_channel_port", role, k) for role, k, _ in file.engines()] == [5600, 5602, 5604]


@pytest.mark.parametrize(
    ("launch", "changes", "devices"),
    [
        (CUDA, {}, [(0,), (1,), (2,)]),
        (CUDA | {"devices": [7, 5, 3, 1]}, {}, [(7,), (5,), (3,)]),
        (CUDA | {"tensor_parallel": 2}, {}, [(0, 1), (2, 3), (4, 5)]),
        (CUDA, {"decode": [{"devices": [0]}, {}]}, [(1,), (0,), (2,)]),
        (CUDA | {"tensor_parallel": 2}, {"prefill": [{"devices": [4, 1]}]}, [(4, 1), (0, 2), (3, 5)]),
        (CUDA | {"devices": [0], "share_devices": True}, {}, [(0,), (0,), (0,)]),
        (CUDA | {"devices": [0, 1], "share_devices": True}, {}, [(0,), (1,), (0,)]),
        (CPU, {}, []),
        (EMULATOR, {}, []),
    ],
)
def test_engines_take_devices_in_order(launch: Any, changes: Any, devices: list[tuple[int, ...]]) -> None:
    assert list(loaded(launch, **changes).devices().values()) == devices


def test_many_engines_on_many_shared_devices_are_counted_round_and_round() -> None:
    file = loaded(CUDA | {"devices": list(range(1_000)), "share_devices": True, "tensor_parallel": 64}, decode=1_024)
    devices = list(file.devices().values())
    assert len(devices) == 1_025 and devices[-1] == tuple((1_024 * 64 + k) % 1_000 for k in range(64))


def test_the_studys_machine_gives_each_engine_a_gpu() -> None:
    file = read("a40-8gpu")
    assert isinstance(file, LaunchFile) and isinstance(file.launch, VllmLaunch)
    assert (len(file.prefill), len(file.decode), file.launch.kv_tokens) == (2, 6, 60_000)
    assert sorted(file.devices().values()) == [(k,) for k in range(8)]


def test_the_emulated_one_has_the_same_cache() -> None:
    file = read("emulated-2p4d")
    assert isinstance(file, LaunchFile) and isinstance(file.launch, EmulatorLaunch)
    assert (len(file.prefill), len(file.decode), file.launch.kv_tokens) == (2, 4, 60_000)


@pytest.mark.parametrize("page", ["clusters.md", "live.md"])
def test_each_cluster_that_the_documentation_shows_can_be_read(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    shown = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    clusters = [fields for fields in shown if "model" in fields]
    assert clusters and [read(fields).name for fields in clusters] == [fields["name"] for fields in clusters]


# --- what it cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "changes", "sentence"),
    [
        ({"kind": "sglang"}, {}, "launch.kind is 'sglang'; it must be one of 'emulator', 'vllm'"),
        ({"device": "cpu"}, {}, "launch.kind is missing; it must be given"),
        ({"kind": "vllm"}, {}, "launch.device is missing; it is required"),
        (EMULATOR | {"dtype": "half"}, {}, "unknown field of launch 'dtype'; allowed: arguments, environment, hazards"),
        (CPU | {"device_s": 1}, {}, "unknown field of launch 'device_s'; nearest: devices, device"),
        (EMULATOR, {"prefill": 0}, "prefill is empty; a cluster has prefill and decode engines, or mixed ones"),
        (EMULATOR, {"decode": -1}, "decode: -1 engines; there may be 0 to 1024"),
        (EMULATOR, {"decode": 1_025}, "decode: 1025 engines; there may be 0 to 1024"),
        (EMULATOR, {"decode": True}, "decode: True is no pool; give a number of engines, or a list of them"),
        (EMULATOR, {"decode": "two"}, "decode: 'two' is no pool; give a number of engines, or a list of them"),
        (EMULATOR, {"decode": [{"url": "http://a:1"}]}, "unknown field of decode.0 'url'; "),
        (EMULATOR, {"mixed": 1}, "mixed engines stand beside prefill or decode ones; a cluster has either"),
        (EMULATOR, {"decode": [{"name": "prefill/0"}]}, "the name 'prefill/0' stands twice; each engine needs its own"),
        (EMULATOR, {"decode": [{"devices": [0]}]}, "decode.0.devices is [0]; emulated engines have none"),
        (CPU, {"decode": [{"devices": [0]}]}, "decode.0.devices is [0]; engines on the CPU have none"),
        (CPU | {"devices": [0]}, {}, "launch.devices is [0]; engines on the CPU have none"),
        (CPU | {"tensor_parallel": 2}, {}, "launch.tensor_parallel is 2; it must be 1 on the CPU"),
        (CUDA | {"devices": []}, {}, "launch.devices is []; it must have at least 1 item"),
        (CUDA | {"devices": [-1]}, {}, "launch.devices.0 is -1; it must be greater than or equal to 0"),
        (CUDA | {"devices": [0, 1]}, {}, "launch.devices is [0, 1]; 3 engines need 3 of them"),
        (
            CUDA | {"devices": [0, 1], "tensor_parallel": 2},
            {},
            "launch.devices is [0, 1]; 3 engines need 6 of them, 2 each",
        ),
        (
            CUDA | {"devices": [0, 1, 0]},
            {},
            "decode/1 has device 0 of prefill/0; share_devices: true in launch allows it",
        ),
        (
            CUDA,
            {"prefill": [{"devices": [3]}], "decode": [{"devices": [3]}]},
            "decode/0 has device 3 of prefill/0; share_devices: true in launch allows it",
        ),
        (
            CUDA | {"devices": [0], "share_devices": True, "tensor_parallel": 2},
            {},
            "prefill/0 has device 0 twice; the GPUs of one engine differ",
        ),
        (CUDA, {"decode": [{"devices": [0, 1]}]}, "decode.0.devices is [0, 1]; it must name 1, launch.tensor_parallel"),
        (CPU, {"time_scale": 0.5}, "time_scale is 0.5; it must be 1 for real engines"),
        (CPU, {"lease_s": 2.5}, "lease_s is 2.5; vLLM takes whole seconds"),
        (EMULATOR | {"port": 0}, {}, "launch.port is 0; it must be greater than or equal to 1"),
        (EMULATOR | {"port": 65_534}, {}, "the port of decode/1 would be 65536; ports go up to 65535"),
        (
            EMULATOR | {"port": 8100},
            {"decode": [{"port": 8100}]},
            "the port of decode/0 is 8100, which is the port of prefill/0; each needs its own",
        ),
        (
            EMULATOR | {"port": 8100, "side_channel_port": 8101},
            {},
            "the port of decode/0 is 8101, which is the side_channel_port of prefill/0; each needs its own",
        ),
        (EMULATOR, {"profile": "a40-qwen2.5-3"}, "profile: unknown profile 'a40-qwen2.5-3'; nearest: a40-qwen2.5-3b"),
    ],
)
def test_each_bad_field_has_its_sentence(launch: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        loaded(launch, **changes)
    assert str(refused.value).startswith(f"live cluster: {sentence}")
