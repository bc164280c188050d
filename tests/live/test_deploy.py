"""The manifests for several machines: valid by their schemas, and what they start is what `live up` would."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from disaggroute.envs import catalog
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.engines.vllm_command import EngineOptions, VllmCommand
from disaggroute.live.launch_file import LaunchFile, VllmLaunch, read

DEPLOY = Path(__file__).parents[2] / "configs" / "deploy"
KUBERNETES = "1.37"
COMPOSE = DEPLOY / "compose.yaml"

DOCUMENTS = {
    f"{file.stem}-{document['kind']}": document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
}


def container(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def options(words: list[str]) -> dict[str, str]:
    """Options by name; one without a value has an empty one."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        found[name] = value
    return found


def started(role: Any) -> dict[str, str]:
    """What `live up a40-8gpu-2p4d` says to an engine, but for where it listens."""
    file = read("a40-8gpu-2p4d")
    assert isinstance(file, LaunchFile) and isinstance(file.launch, VllmLaunch)
    assert file.block_size is not None and file.launch.kv_tokens is not None
    settings = EngineOptions(
        block_size=file.block_size,
        num_blocks=file.launch.kv_tokens // file.block_size,
        max_model_len=None,
        max_num_seqs=None,
        lease_s=int(file.lease_s),
        dtype="bfloat16",
        device="cuda",
        enforce_eager=False,
    )
    words = VllmCommand(role, file.model, file.model, 8000, 5600, settings).words(Path("python"), None)[3:]
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = ""
        else:
            found[list(found)[-1]] = word
    return found | {"--host": "0.0.0.0"}


def same(ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Equal options; JSON by its meaning."""
    transfer = "--kv-transfer-config"
    assert json.loads(ours.pop(transfer)) == json.loads(theirs.pop(transfer))
    assert ours == theirs


# --- Kubernetes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_object_fits_the_schema_of_kubernetes(name: str) -> None:
    assert kubernetes_validate.validate(DOCUMENTS[name], KUBERNETES, strict=True) == KUBERNETES


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    broken = copy.deepcopy(DOCUMENTS["prefill-StatefulSet"])
    broken["spec"]["replica"] = broken["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pod_starts_what_live_up_starts(role: str) -> None:
    engine = container(DOCUMENTS[f"{role}-StatefulSet"])
    same(options(engine["args"]), started(role))
    variables = {each["name"]: each.get("value") for each in engine["env"]}
    ports = {each["name"]: each["containerPort"] for each in engine["ports"]}
    assert ports == {"http": 8000, "side-channel": int(variables["VLLM_NIXL_SIDE_CHANNEL_PORT"])}
    host = next(each for each in engine["env"] if each["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST")
    assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}


def test_the_router_looks_for_each_pod_by_the_name_that_it_will_have() -> None:
    cluster = LiveCluster.load(yaml.safe_load(DOCUMENTS["router-ConfigMap"]["data"]["cluster.yaml"]))
    for role in ("prefill", "decode"):
        pods, service = DOCUMENTS[f"{role}-StatefulSet"], DOCUMENTS[f"{role}-Service"]
        assert service["spec"]["clusterIP"] == "None"
        assert pods["spec"]["serviceName"] == service["metadata"]["name"] == role
        labels = pods["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"] == labels
        assert [entry.url for entry in getattr(cluster, role)] == [
            f"http://{role}-{k}.{role}:8000" for k in range(pods["spec"]["replicas"])
        ]


def test_the_router_takes_the_ports_and_files_that_its_pod_has() -> None:
    deployment, service = DOCUMENTS["router-Deployment"], DOCUMENTS["router-Service"]
    router = container(deployment)
    said = options(router["args"])
    ports = {each["name"]: each["containerPort"] for each in router["ports"]}
    assert ports == {"clients": int(said["--port"]), "operators": int(said["--admin-port"])}
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
    mounted = {each["name"]: each["mountPath"] for each in router["volumeMounts"]}
    assert said["--api-keys"].startswith(mounted["keys"]) and said["--records"].startswith(mounted["records"])
    assert router["command"][-1] == f"{mounted['cluster']}/cluster.yaml"
    assert {each["name"] for each in deployment["spec"]["template"]["spec"]["volumes"]} == mounted.keys()


# --- Compose --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text())
    assert isinstance(found, dict)
    return found


def checked(file: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_compose_file_fits_the_schema_of_compose_and_a_broken_one_does_not(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    done = checked(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr
    compose = copy.deepcopy(compose)
    compose["services"]["router"]["port"] = compose["services"]["router"].pop("ports")
    broken = tmp_path / "compose.yaml"
    broken.write_text(yaml.safe_dump(compose))
    done = checked(broken)
    assert done.returncode == 1 and "'port' was unexpected" in done.stdout


def engines(compose: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, role and description of each engine's service."""
    for name, service in compose["services"].items():
        if name != "router":
            yield name, name.partition("-")[0], service


def test_each_service_starts_what_live_up_starts_on_a_gpu_and_at_an_address_of_its_own(
    compose: dict[str, Any],
) -> None:
    gpus, addresses = [], []
    for _, role, service in engines(compose):
        same(options(service["command"]), started(role))
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        gpus += device["device_ids"]
        addresses.append(service["networks"]["engines"]["ipv4_address"])
        assert service["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == addresses[-1]
        assert service["environment"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert gpus == [str(k) for k in range(6)] and len(set(addresses)) == 6


def test_the_router_of_compose_looks_for_each_service_by_its_name(compose: dict[str, Any]) -> None:
    cluster = LiveCluster.load(yaml.safe_load(compose["configs"]["cluster"]["content"]))
    urls = [entry.url for _, _, entry in cluster.engines()]
    assert urls == [f"http://{name}:8000" for name, _, _ in engines(compose)]


@pytest.mark.parametrize("where", ["kubernetes", "compose"])
def test_the_command_of_the_router_has_the_options_that_it_is_given(where: str, compose: dict[str, Any]) -> None:
    if where == "compose":
        words = compose["services"]["router"]["command"]
    else:
        router = container(DOCUMENTS["router-Deployment"])
        words = [*router["command"][1:], *router["args"]]
    done = subprocess.run([sys.executable, "-m", "disaggroute", *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_they_serve_the_cluster_of_the_study() -> None:
    assert catalog.read("live", "a40-8gpu-2p4d")["profile"] == "a40-qwen2.5-3b"
    cluster = LiveCluster.load(yaml.safe_load(DOCUMENTS["router-ConfigMap"]["data"]["cluster.yaml"]))
    assert (len(cluster.prefill), len(cluster.decode), cluster.profile) == (2, 4, "a40-qwen2.5-3b")
