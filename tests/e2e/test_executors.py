"""`--executor` and `--ray-address`, on every command that has `--workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from disaggroute.__main__ import app

COMMANDS: Any = typer.main.get_command(app)
SPREAD = {
    "evaluate": ["chat", "--rate", "5"],
    "tune": ["marginal-cost", "chat", "--rate", "5"],
    "train": ["tiny-es"],
    "saturate": ["chat"],
    "check-scenario": ["chat", "--rate", "5"],
    "compare-routers": ["chat", "--rate", "5"],
    "explain": ["least-loaded", "chat", "--rate", "5"],
    "returns": ["--configs", "chat"],
}
"""Words of every command that has `--workers`."""


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_whoever_has_workers_has_executors() -> None:
    having = {name for name, command in COMMANDS.commands.items() if "--workers" in options_of(command)}
    assert having == SPREAD.keys()
    for name in having:
        assert {"--executor", "--ray-address"} <= options_of(COMMANDS.commands[name]), name


@pytest.mark.parametrize("command", SPREAD)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--executor", "rya"], "unknown executor 'rya'; nearest: ray"),
        (["--ray-address", "10.0.0.1:6379"], "ray_address is 10.0.0.1:6379, but the executor is process; "),
        (["--executor", "ray", "--ray-address", "here"], "ray_address is here; it must be HOST:PORT of the head"),
        (["--executor", "ray", "--ray-address", "127.0.0.1:1"], "ray_address is 127.0.0.1:1, where nothing answers ("),
        (["--executor", "ray", "--workers", "0"], "workers is 0; it must be at least 1"),
    ],
)
def test_an_executor_that_there_is_not_is_refused_in_one_sentence(
    command: str, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, *SPREAD[command], *words])
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith(f"disaggroute: {sentence}")
    assert not list(tmp_path.iterdir())


def test_a_matrix_takes_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "--matrix", "generalisation", "--executor", "ray", "--ray-address", "127.0.0.1:1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and "ray_address is 127.0.0.1:1, where nothing answers" in result.stderr


def test_a_policy_is_described_without_an_executor() -> None:
    result = CliRunner().invoke(app, ["explain", "least-loaded", "--executor", "ray"])
    assert result.exit_code == 2 and "executor is ray, but no workload is named" in result.stderr
