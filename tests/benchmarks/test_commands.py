"""`disaggroute bench`: names, units and JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.benchmarks import (
    clone,
    decision,
    environment,
    memory,
    policies,
    proxy,
    simulator,
    startup,
    training,
    vector,
)
from disaggroute.benchmarks.measurement import Result

QUICK = ["--topologies", "2P4D", "--policies", "round-robin", "--requests", "500", "--repeats", "2"]


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def results(out: str) -> list[dict[str, Any]]:
    """The results of a JSON object, each of which is well-formed."""
    data = json.loads(out)
    assert data.keys() == {"machine", "results"} and data["machine"]["cpu"]
    for result in data["results"]:
        assert result.keys() >= {"name", "value", "unit", "min", "max", "repeats"}
        assert result["min"] <= result["value"] <= result["max"] and result["repeats"] >= 1
    listed: list[dict[str, Any]] = data["results"]
    return listed


def test_the_json_object_stands_alone_on_the_standard_output() -> None:
    out, err = run("simulator", *QUICK, "--json")
    first, touch = results(out)
    assert first["name"] == "simulator/2P4D/round-robin" and first["unit"] == "requests/s"
    assert touch["name"] == "simulator/2P4D/first-touch"
    assert first["command"] == "disaggroute bench simulator " + " ".join(QUICK)
    assert "simulator/2P4D/round-robin" in err


def test_the_table_shows_the_speed_the_load_the_machine_and_the_command() -> None:
    out, _ = run("simulator", *QUICK)
    for words in ("/s", "goodput", "Numba", "again: disaggroute bench simulator --topologies 2P4D"):
        assert words in out


def test_a_run_is_compared_with_an_earlier_one(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(run("simulator", *QUICK, "--json")[0])
    after = results(run("simulator", *QUICK, "--json", "--compare", str(before))[0])
    assert all(result["baseline"] > 0 and result["gain"] > 0 for result in after)
    assert "×" in run("simulator", *QUICK, "--compare", str(before))[0]


TINY = ["--duration-s", "3", "--repeats", "2"]


def test_the_vector_environment_is_measured_by_its_command() -> None:
    options = ["--envs", "2,1", "--sync-envs", "0", "--threads", "2", "--episodes", "2", *TINY]
    out, err = run("vector", *options, "--json")
    listed = results(out)
    names = ["vector/2", "vector/2/least-loaded", "vector/2/reset", "vector/1", "vector/2/threads-2"]
    assert [result["name"] for result in listed] == names and "vector/1" in err
    assert listed[0]["command"].startswith("disaggroute bench vector --envs 2,1")


def test_the_single_environment_is_measured_by_its_command() -> None:
    out, _ = run("env", "--episodes", "1", *TINY)
    for words in ("env/tuple", "goodput", "80 k", "again: disaggroute bench env --episodes 1"):
        assert words in out


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each measurement was given; none of them is made."""
    given: dict[str, Any] = {}

    def stand_in(module: Any) -> None:
        name = module.__name__.rpartition(".")[2]

        def measure(*arguments: Any, **options: Any) -> list[Result]:
            given[name] = options
            return [Result.of("/".join([name, *map(str, arguments[:-1])]), "s", [1.0])]

        monkeypatch.setattr(module, "measure", measure)

    for module in (simulator, policies, vector, environment, training, decision, proxy, clone, startup, memory):
        stand_in(module)
    monkeypatch.setattr("disaggroute.benchmarks.drive.saturation_rate", lambda topology, say: 10.0)
    return given


def test_decisions_of_learned_policies_are_measured_cluster_by_cluster(stands_in: dict[str, Any]) -> None:
    out, _ = run("policies", "--requests", "9", "--repeats", "3", "--seed", "4", "--json")
    assert [result["name"] for result in results(out)] == ["policies/2P4D", "policies/16P48D"]
    given = stands_in["policies"]
    assert (given["requests"], given["repeats"], given["seed"]) == (9, 3, 4)


def test_training_is_measured_with_the_settings_of_its_options(stands_in: dict[str, Any]) -> None:
    out, _ = run("train", "--envs", "8", "--batch", "512", "--duration-s", "30", "--json")
    (result,) = results(out)
    assert result["command"] == "disaggroute bench train --envs 8 --batch 512 --duration-s 30.0"
    stated = {key: stands_in["training"][key] for key in ("envs", "steps", "batch", "epochs", "threads", "overrides")}
    assert stated == {
        "envs": 8, "steps": 256, "batch": 512, "epochs": 4, "threads": 1, "overrides": {"duration_s": 30.0}
    }


def test_training_is_left_out_with_a_word_where_a_library_is_missing(
    stands_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LIBRARIES", ("no_such_torch",))
    out, err = run("--json")
    assert "training" not in [result["name"] for result in results(out)]
    assert "train is left out: no_such_torch is not installed; `pip install 'disaggroute[train]'`" in err


def test_the_proxy_is_measured_with_the_settings_of_its_options(stands_in: dict[str, Any]) -> None:
    out, _ = run("proxy", "--requests", "9", "--step-ms", "2", "--held", "0", "--repeats", "3", "--json")
    assert [result["name"] for result in results(out)] == ["decision", "proxy"]
    given = stands_in["proxy"]
    assert (given["requests"], given["step_s"], given["held"], given["repeats"]) == (9, 0.002, [], 3)
    assert stands_in["decision"]["repeats"] == 3 and given["concurrency"] == 32 and not given["realtime"]


def test_the_proxy_is_left_out_with_a_word_where_it_cannot_be_measured(
    stands_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LIBRARIES", ())
    monkeypatch.setattr(proxy, "LIBRARIES", ("no_such_loop",))
    out, err = run("--json")
    assert not {"proxy", "decision"} & {result["name"] for result in results(out)}
    assert "proxy is left out: no_such_loop is not installed, and the router needs it" in err


def test_without_a_name_everything_is_measured(
    stands_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LIBRARIES", ())
    monkeypatch.setattr(proxy, "missing", lambda: None)
    out, _ = run("--json", "--requests", "7", "--repeats", "3", "--cold-repeats", "0")
    listed = results(out)
    names = ["simulator/2P4D", "policies/2P4D", "simulator/16P48D", "policies/16P48D"]
    names += ["vector", "environment", "training", "decision", "proxy", "clone", "startup", "memory"]
    assert [result["name"] for result in listed] == names
    assert {r["command"] for r in listed} == {"disaggroute bench --requests 7 --repeats 3 --cold-repeats 0"}
    assert {stands_in[name]["requests"] for name in ("simulator", "policies", "memory")} == {7}
    assert stands_in["startup"]["cold_repeats"] == 0
    repeated = ("policies", "vector", "environment", "training", "decision", "proxy", "clone")
    assert {stands_in[name]["repeats"] for name in repeated} == {3}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json", "startup"], "--json stands before startup; it must stand after it"),
        (["--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["--cold-repeats", "-1"], "cold_repeats is -1; it must be at least 0"),
        (["simulator", "--requests", "0"], "requests is 0; it must be at least 1"),
        (["simulator", "--rate", "10"], "rate is 10 for 2 topologies; it must be given with one"),
        (["simulator", "--topologies", "2X", "--rate", "10"], "topology is '2X'; it must read like 2P4D"),
        (["simulator", "--topologies", ","], "topologies is ','; at least one is needed, such as 2P4D"),
        (["simulator", "--policies", "round-robbin"], "unknown policy 'round-robbin'; nearest: round-robin"),
        (["policies", "--rate", "10"], "rate is 10 for 2 topologies; it must be given with one"),
        (["policies", "--requests", "0"], "requests is 0; it must be at least 1"),
        (["clone", "--rate", "0"], "rate is 0; it must be greater than 0"),
        (["memory", "--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["vector", "--envs", "8,x"], "envs is '8,x'; it must be numbers separated by commas, such as 256,16,1"),
        (["vector", "--envs", ","], "envs is ','; it must be numbers separated by commas, such as 256,16,1"),
        (["vector", "--sync-envs", "-1"], "sync_envs is -1; it must be at least 0"),
        (["vector", "--duration-s", "0"], "duration_s is 0"),
        (["env", "--episodes", "0"], "episodes is 0; it must be at least 1"),
        (["train", "--batch", "5000"], "batch is 5000; it must divide the rollout, envs · steps = 16384"),
        (["proxy", "--held", "8,x"], "held is '8,x'; it must be numbers separated by commas"),
        (["proxy", "--concurrency", "0"], "concurrency is 0; it must be at least 1"),
        (["proxy", "--step-ms", "0"], "step is 0 ms; it must be above 0 and at most 1000"),
        (["startup", "--compare", "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    out, err = run(*arguments, code=2)
    assert out == "" and sentence in err.splitlines()[-1]
