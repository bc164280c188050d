"""`disaggroute live gate` and `live calibrate`, as people start them: files, exit codes and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.envs import profiles
from disaggroute.live.cluster_file import LiveCluster
from disaggroute.live.emulated_cluster import emulated

SCALE = 0.2


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this exit code."""
    result = CliRunner().invoke(app, ["live", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a cluster of emulated engines that run."""
    with emulated("1P2D", "a40-qwen2.5-3b", time_scale=SCALE, kv_tokens=16_000, extra=("--max-model-len", "700")) as (
        _,
        live,
    ):
        path = tmp_path_factory.mktemp("cluster") / "ours.yaml"
        path.write_text(yaml.safe_dump(live.model_dump(mode="json", exclude_defaults=True)))
        yield path


def test_gates_of_engines_that_run_are_a_table_and_a_json_file(cluster: Path, tmp_path: Path) -> None:
    file = tmp_path / "gates.json"
    out, err = run("gate", str(cluster), "--out", str(file))
    assert "the same output from every pair" in out and out.count("passed") == 5 and str(file) in out
    assert err.splitlines()[0] == "gate: warm-up"
    report = json.loads(file.read_text())
    assert report["passed"] and [pair["decode"] for pair in report["warm_ups"]] == ["decode/0", "decode/1"]
    _, err = run("gate", str(cluster), "--out", str(file), code=2)
    assert err == f"disaggroute: out is {file}, which exists; name another file, or say --force\n"
    assert json.loads(file.read_text()) == report
    run("gate", str(cluster), "--out", str(file), "--force")


def test_a_calibration_writes_a_profile_that_commands_take(cluster: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["calibrate", str(cluster), "--out", str(folder), "--name", "mine", "--gpu", "emulated", "--quick"]
    out, err = run(*words, "--minutes", "0.01")
    path = folder / "mine.yaml"
    assert out.endswith(f"{path}\n") and "step.decode_base_ms" in out and "SLO targets" in out
    assert "gate: warm-up" in err
    names = {"calibration.json", "cluster.yaml", "fit.png", "fits.json", "gates.json", "measurements.csv", "mine.yaml"}
    assert {file.name for file in folder.iterdir()} == names
    profile = profiles.load(path)
    assert profile.gpu == "emulated" and profile.limits.max_model_len == 700 and profile.memory.kv_tokens == 16_000
    assert LiveCluster.load(folder / "cluster.yaml").time_scale == SCALE
    shown = CliRunner().invoke(app, ["profile", "show", str(path)])
    assert shown.exit_code == 0
    _, err = run(*words, code=2)
    assert "holds the finished profile mine.yaml; name another, or --force" in err
    # What is lost of a finished calibration comes again from its measurements, without another request.
    content = path.read_bytes()
    path.unlink()
    _, err = run(*words, "--minutes", "0.01")
    assert path.read_bytes() == content and "going on from" in err and "gate:" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--name", "A 40"], "name is 'A 40'; it must be lower-case letters, digits, dots and hyphens"),
        (["--minutes", "0"], "minutes is 0; it must be above 0 and at most 1,440"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_asked(
    cluster: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    out, err = run("calibrate", str(cluster), "--out", str(tmp_path / "out"), *arguments, code=2)
    assert out == "" and err == f"disaggroute: {sentence}\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["gate", "calibrate"])
def test_an_engine_that_is_not_there_is_named(tmp_path: Path, command: str) -> None:
    path = tmp_path / "gone.yaml"
    path.write_text("model: m\nprofile: a40-qwen2.5-3b\nmixed: [{url: 'http://127.0.0.1:9'}]\n")
    out, err = run(command, str(path), "--out", str(tmp_path / "out"), code=2)
    assert out == "" and "127.0.0.1:9" in err and len(err.splitlines()) == 1


def test_a_cluster_without_enough_context_is_refused(cluster: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.yaml"
    short.write_text(cluster.read_text() + "max_model_len: 200\n")
    _, err = run("calibrate", str(short), "--out", str(tmp_path / "out"), code=2)
    assert "take 200 tokens (context limit or KV cache); at least 256 are needed" in err
