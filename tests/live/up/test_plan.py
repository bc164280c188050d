"""What a file with a `launch` section leads to: commands, variables and addresses."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.envs import catalog
from disaggroute.live.launch_file import LaunchFile, read
from disaggroute.live.up import devices
from disaggroute.live.up import plan as planning
from disaggroute.live.up.plan import plan
from disaggroute.live.up.state import EngineState

PYTHON = Path(sys.executable)


def launch(file: Any, folder: Path, **changes: Any) -> list[EngineState]:
    fields = catalog.read("live", file) if isinstance(file, str) else file
    fields["launch"] |= changes
    made = read(fields)
    assert isinstance(made, LaunchFile)
    return plan(made, "c.yaml", folder)[0].engines


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: list(range(8)))


@pytest.mark.usefixtures("eight_gpus")
def test_the_studys_machine_starts_vllm_on_a_gpu_each_without_what_only_a_cpu_needs(tmp_path: Path) -> None:
    engines = launch("a40-8gpu", tmp_path, python=str(PYTHON))
    assert [engine.environment["CUDA_VISIBLE_DEVICES"] for engine in engines] == [str(k) for k in range(8)]
    assert [engine.port for engine in engines] == list(range(8100, 8108))
    assert [engine.side_channel_port for engine in engines] == list(range(5600, 5608))
    for engine in engines:
        words, variables = engine.words, engine.environment
        assert words[0] == str(PYTHON) and words[1].endswith("engine_process.py") and words[2] == "detached"
        assert value(words, "--model") == value(words, "--served-model-name") == "Qwen/Qwen2.5-3B"
        assert value(words, "--dtype") == "bfloat16" and value(words, "--block-size") == "16"
        assert value(words, "--num-gpu-blocks-override") == str(60_000 // 16 + 1)  # one is never used
        assert not {"--enforce-eager", "--max-model-len", "--max-num-seqs", "--tensor-parallel-size"} & set(words)
        transfer = json.loads(value(words, "--kv-transfer-config"))
        assert transfer["kv_buffer_device"] == "cuda"
        assert transfer["kv_role"] == ("kv_producer" if engine.role == "prefill" else "kv_consumer")
        assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(engine.side_channel_port)
        assert not {"UCX_TLS", "UCX_NET_DEVICES", "HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE"} & variables.keys()


@pytest.mark.usefixtures("eight_gpus")
def test_engines_of_several_gpus_and_what_each_has_of_its_own(tmp_path: Path) -> None:
    fields = catalog.read("live", "a40-8gpu") | {"prefill": 1}
    own = {"arguments": ["--seed", "4"], "environment": {"A": "own"}, "overrides": {"max_num_seqs": 9}}
    changes = {"tensor_parallel": 2, "arguments": ["--seed", "3"], "environment": {"A": "all", "B": "all"}}
    engines = launch(fields | {"decode": [own, {}]}, tmp_path, python=str(PYTHON), max_num_seqs=5, **changes)
    assert [engine.environment["CUDA_VISIBLE_DEVICES"] for engine in engines] == ["0,1", "2,3", "4,5"]
    assert [value(engine.words, "--tensor-parallel-size") for engine in engines] == ["2"] * 3
    assert [value(engine.words, "--max-num-seqs") for engine in engines] == ["5", "9", "5"]
    assert engines[1].words[-4:] == ["--seed", "3", "--seed", "4"]
    assert [(engine.environment["A"], engine.environment["B"]) for engine in engines] == [
        ("all", "all"),
        ("own", "all"),
        ("all", "all"),
    ]


def test_the_cpu_one_starts_a_tiny_model_that_it_makes(tmp_path: Path) -> None:
    engines = launch("cpu-smoke", tmp_path, python=str(PYTHON))
    assert [engine.role for engine in engines] == ["prefill", "decode", "decode"]
    assert len({port for engine in engines for port in (engine.port, engine.side_channel_port)}) == 6
    words, variables = engines[0].words, engines[0].environment
    assert value(words, "--model") == str(tmp_path / "tiny") and (tmp_path / "tiny" / "config.json").exists()
    assert value(words, "--dtype") == "float32" and value(words, "--block-size") == "32" and "--enforce-eager" in words
    assert value(words, "--max-model-len") == "2048" and value(words, "--num-gpu-blocks-override") == "129"
    assert variables["UCX_NET_DEVICES"] == "lo" and variables["HF_HUB_OFFLINE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in variables


def test_an_emulated_engine_has_the_limits_of_the_file_and_its_own(tmp_path: Path) -> None:
    fields = catalog.read("live", "emulated-2p4d") | {"prefill": 1, "time_scale": 0.5, "max_model_len": 4096}
    fields["decode"] = [{"overrides": {"num_blocks": 7, "egress_gb_per_s": 2}}, {}]
    engines = launch(fields, tmp_path, profile="h100-qwen2.5-3b", hazards=False)
    own, other = engines[1].words, engines[2].words
    assert value(own, "--num-blocks") == "7" and value(own, "--egress-gb-per-s") == "2.0" and "--kv-tokens" not in own
    assert value(other, "--kv-tokens") == "60000" and "--num-blocks" not in other
    for words in (own, other):
        assert value(words, "--profile") == "h100-qwen2.5-3b" and value(words, "--time-scale") == "0.5"
        assert value(words, "--max-model-len") == "4096" and value(words, "--lease-s") == "30.0"
        assert words[-1] == "--no-hazards"


def test_the_cluster_has_the_addresses_and_what_the_router_believes(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(catalog.read("profiles", "a40-qwen2.5-3b") | {"name": "mine"}))
    monkeypatch.chdir(tmp_path)
    fields = catalog.read("live", "emulated-2p4d") | {"profile": "mine.yaml", "prefill": 1}
    fields["decode"] = [{"name": "big", "overrides": {"max_num_seqs": 99}}]
    file = read(fields)
    assert isinstance(file, LaunchFile)
    state, cluster = plan(file, "c.yaml", tmp_path)
    assert (cluster.name, cluster.profile, cluster.block_size) == ("emulated-2p4d", str(tmp_path / "mine.yaml"), 16)
    assert [entry.url for _, _, entry in cluster.engines()] == [
        f"http://127.0.0.1:{engine.port}" for engine in state.engines
    ]
    assert cluster.decode[0].name == "big" and cluster.decode[0].overrides.max_num_seqs == 99
    assert value(state.engines[0].words, "--profile") == str(tmp_path / "mine.yaml")


def test_a_folder_of_a_tokenizer_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for tokenizer, found in (("mine", str(tmp_path / "mine")), ("engine", "engine"), ("bytes", "bytes")):
        file = read(catalog.read("live", "emulated-2p4d") | {"tokenizer": tokenizer})
        assert isinstance(file, LaunchFile)
        assert plan(file, "c.yaml", tmp_path)[1].tokenizer == found


def test_a_port_that_is_written_for_one_engine_is_not_given_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter(range(20_000, 20_010))
    monkeypatch.setattr(planning, "is_free", lambda port: True)
    monkeypatch.setattr(planning, "free_port", lambda: next(free))
    fields = catalog.read("live", "emulated-2p4d") | {"prefill": 1, "decode": [{"port": 20_001}]}
    engines = launch(fields, tmp_path)
    assert [(each.port, each.side_channel_port) for each in engines] == [(20_000, 20_002), (20_001, 20_003)]


# --- what cannot be started -----------------------------------------------------------------------------------------


def refused(file: Any, folder: Path, **changes: Any) -> str:
    with pytest.raises(ValueError) as found:
        launch(file, folder, **changes)
    return str(found.value)


def test_gpus_that_the_machine_does_not_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: [])
    assert refused("a40-8gpu", tmp_path) == "devices 0, 1, 2, 3, 4, 5, 6, 7 are wanted; this machine has none"


def test_engines_that_are_not_installed_are_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISAGGROUTE_ENGINES", str(tmp_path))
    said = f"{tmp_path}/cpu: no engines are installed; `disaggroute live install-engines --cpu` installs them"
    assert refused("cpu-smoke", tmp_path) == said


@pytest.mark.parametrize("name", ["python", "", "py\0thon"], ids=["none", "a folder", "no name"])
def test_a_python_that_cannot_be_run_is_refused(tmp_path: Path, name: str) -> None:
    python = str(tmp_path / name)
    assert refused("cpu-smoke", tmp_path, python=python) == f"launch.python is {python}, which cannot be run"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arguments": ["a\0b"]}, r"'a\x00b' holds a null character; neither a command nor a variable can"),
        ({"environment": {"A": "a\0b"}}, r"'a\x00b' holds a null character; neither a command nor a variable can"),
        ({"environment": {"A=B": "c"}}, "environment has 'A=B'; that is no name that a variable may be given"),
        ({"environment": {"": "c"}}, "environment has ''; that is no name that a variable may be given"),
        (
            {"environment": {"DISAGGROUTE_LAUNCHED": "c"}},
            "environment has 'DISAGGROUTE_LAUNCHED'; that is no name that a variable may be given",
        ),
    ],
)
def test_words_that_no_process_can_be_given_are_refused(tmp_path: Path, changes: Any, sentence: str) -> None:
    assert refused("emulated-2p4d", tmp_path, **changes) == f"prefill/0: {sentence}"


@pytest.mark.parametrize("field", ["port", "side_channel_port"])
def test_a_port_that_is_taken_is_refused(tmp_path: Path, field: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = f"the {field} of prefill/0 is {port}, which is taken; end what listens there, or give another"
        assert refused("emulated-2p4d", tmp_path, **{field: port}) == said


def test_an_emulated_engine_that_cannot_be_is_refused_by_its_name(tmp_path: Path) -> None:
    fields = catalog.read("live", "emulated-2p4d") | {"decode": [{"name": "left"}]}
    assert refused(fields, tmp_path, kv_tokens=5).startswith("prefill/0: a40-qwen2.5-3b: ")
    fields = catalog.read("live", "emulated-2p4d")
    assert refused(fields, tmp_path, profile="nowhere").startswith("prefill/0: unknown profile 'nowhere'")
