"""`disaggroute train` and the files it leaves: what it prints and refuses, and what a kill leaves."""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.policies import parse

TINY = ["tiny-es", "--set", "budget=3", "--set", "validation.duration_s=20", "--set", "checkpoint_every=1"]


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Standard output and standard error of a command that ends with this exit code."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def content(folder: Path) -> dict[str, bytes]:
    """What is the same whenever the same is trained; runs in `validation` name the candidates' paths."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"tensorboard", "validation"} & set(path.relative_to(folder).parts)
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and what was printed."""
    folder = tmp_path_factory.mktemp("train") / "a folder, with (brackets)"
    out, _ = run("train", *TINY, "--workers", "1", "--out", str(folder))
    return folder, out


def test_it_shows_the_card_and_where_the_files_lie(trained: tuple[Path, str]) -> None:
    folder, out = trained
    assert (folder / "card.md").read_text() in out
    for name in ("trained.yaml", "card.md", "validation.csv"):
        assert (folder / name).stat().st_size > 0 and str(folder / name) in out


def test_the_file_names_a_policy(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    assert parse(f'linear@"{folder / "trained.yaml"}"').name == "linear"


def test_the_command_in_the_file_makes_the_files_again(trained: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = trained
    words = shlex.split(yaml.safe_load((folder / "trained.yaml").read_text())["provenance"]["command"])
    assert words[0] == "disaggroute"
    run(*words[1:], "--workers", "1", "--out", str(tmp_path / "r"))
    assert content(tmp_path / "r") == content(folder)


def test_several_seeds_have_folders_of_their_own(tmp_path: Path) -> None:
    out, _ = run(
        *("train", *TINY, "--set", "budget=1", "--seed", "4", "--seeds", "2"),
        *("--workers", "1", "--out", str(tmp_path / "r")),
    )
    assert (tmp_path / "r" / "seed-4").is_dir() and (tmp_path / "r" / "seed-5").is_dir()
    assert "disaggroute train tiny-es" in out and "--seed 4 --seeds 2" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nobody"], "unknown training 'nobody'"),
        (["tiny-es", "--set", "budgets=3"], "tiny-es: unknown field 'budgets'; nearest: budget"),
        (["tiny-es", "--set", "method=sarsa"], "tiny-es: method: unknown training method 'sarsa'"),
        (["tiny-es", "--set", "seeds.last=30005"], "leave the tuning range"),
        (["tiny-es", "--set", "validation.first_seed=5"], "leave the validation range"),
        (["tiny-es", "--device", "tpu"], "device is 'tpu'; it must be 'cpu' or 'cuda'"),
        (["tiny-es", "--device", "cuda"], "device is 'cuda'"),
        (["tiny-es", "--seed", "-1"], "training_seed is -1"),
        (["tiny-es", "--seeds", "0"], "seeds is 0; it must be at least 1"),
        (["tiny-es", "--workers", "0"], "workers is 0; it must be at least 1"),
        (["tiny-es", "--set", "budget"], "it must read like parameters.population=32"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(options: list[str], words: str, tmp_path: Path) -> None:
    _, err = run("train", *options, "--out", str(tmp_path / "r"), code=2)
    assert err.count("\n") == 1 and words in err
    assert not (tmp_path / "r").exists()


def test_a_folder_of_another_configuration_is_refused(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    _, err = run("train", *TINY, "--set", "budget=2", "--out", str(folder), code=2)
    assert "holds runs of another configuration (other budget); name another folder" in err


LONG = [
    *(sys.executable, "-m", "disaggroute", "train", "tiny-es", "--workers", "1"),
    *("--set", "budget=40", "--set", "checkpoint_every=3", "--set", "validation.duration_s=20"),
]


def last_checkpoint(out: Path) -> int:
    return max((int(path.stem) for path in (out / "seed-0" / "checkpoints").glob("*.checkpoint")), default=0)


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "r"
    subprocess.run([*LONG, "--out", str(whole)], check=True, capture_output=True)

    moments, kills = random.Random(0), 0
    for _ in range(3):
        before = last_checkpoint(out)
        process = subprocess.Popen([*LONG, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while last_checkpoint(out) == before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills > 0, "it had ended before it was killed"

    subprocess.run([*LONG, "--out", str(out)], check=True, capture_output=True)
    assert content(out) == content(whole)


def test_an_interrupted_training_says_how_to_go_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*LONG, "--out", str(tmp_path / "r")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while last_checkpoint(tmp_path / "r") == 0:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "interrupted; the same command goes on from the last checkpoint" in err
