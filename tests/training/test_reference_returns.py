"""Reference returns: the stored ones are what the code earns, and the command that makes them resumes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import disaggroute
from disaggroute.__main__ import app
from disaggroute.envs import environment_config
from disaggroute.policies import parse
from disaggroute.training import reference_returns
from disaggroute.training.reference_returns import BASELINES, Earned, Task, earn, read, update
from disaggroute.training.seeds import VALIDATION

SMALL = "mixed-bursty-a40-1p2d"


def made_up(task: Task) -> Earned:
    """As if by playing, but at once."""
    returns = tuple(-float(seed % 7 + len(task.policy)) for seed in task.seeds)
    return Earned(mean_return=sum(returns) / len(returns), mean_goodput=0.5, returns=returns)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was played, in which no time passes."""
    tasks: list[Task] = []

    def play(task: Task) -> Earned:
        tasks.append(task)
        return made_up(task)

    monkeypatch.setattr(reference_returns, "earn", play)
    return tasks


def test_every_registered_configuration_has_the_returns_of_every_baseline() -> None:
    stored = read()
    assert stored.environment == disaggroute.ENVIRONMENT
    assert set(stored.configurations) == set(environment_config.names())
    assert all(set(BASELINES) <= set(policies) for policies in stored.configurations.values())
    assert stored.first_seed in VALIDATION and stored.first_seed + stored.seeds - 1 in VALIDATION


def test_the_stored_means_are_those_of_the_stored_returns() -> None:
    for policies in read().configurations.values():
        for earned in policies.values():
            assert earned.mean_return == pytest.approx(sum(earned.returns) / len(earned.returns), rel=1e-12)
            assert all(value <= 0 and value == math.floor(value) for value in earned.returns), "misses are counted"


@pytest.mark.parametrize("policy", BASELINES)
def test_a_stored_return_is_earned_again_exactly(policy: str) -> None:
    stored = read()
    again = earn(Task(SMALL, policy, range(stored.first_seed, stored.first_seed + 1)))
    assert again.returns == stored.configurations[SMALL][policy].returns[:1]


def test_what_is_stored_is_not_played_again(played: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    update(path, [SMALL], ["random"], seeds=3)
    whole = update(path, ["chat", SMALL], ["random", "round-robin"], seeds=3)
    pairs = [(task.config, task.policy) for task in played]
    assert pairs == [(SMALL, "random"), ("chat", "random"), ("chat", "round-robin"), (SMALL, "round-robin")]
    assert read(path) == whole
    update(path, [SMALL], ["random"], seeds=3, again=True)
    assert len(played) == 5 and read(path) == whole


def test_the_order_in_which_it_was_played_leaves_no_trace(played: list[Task], tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    update(first, ["chat", SMALL], ["least-loaded", "random", "marginal-cost(w_q=1)"], seeds=2)
    for policy in ("marginal-cost(w_q=1)", "least-loaded", "random"):
        update(second, [SMALL, "chat"], [policy], seeds=2)
    assert first.read_bytes() == second.read_bytes()


def test_what_was_played_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(task: Task) -> Earned:
        if task.policy == "round-robin":
            raise RuntimeError("the lights go out")
        return made_up(task)

    monkeypatch.setattr(reference_returns, "earn", play)
    path = tmp_path / "mine.yaml"
    with pytest.raises(RuntimeError, match="the lights go out"):
        update(path, [SMALL], ["random", "round-robin"], seeds=3)
    assert list(read(path).configurations[SMALL]) == ["random"]


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["returns", "--workers", "1", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--configs", "chta"], "unknown environment 'chta'; nearest: chat"),
        (["--policies", "rnadom"], "unknown policy 'rnadom'; nearest: random"),
        (["--seeds", "0"], "seeds is 0; it must be at least 1"),
        (["--first-seed", "30000"], "seed 30000 is held out for claims (30000 to 30099); reference returns may not"),
        (["--workers", "0"], "workers is 0; it must be at least 1"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    assert refusal("--out", str(tmp_path / "mine.yaml"), *arguments).startswith(f"disaggroute: {sentence}")
    assert not (tmp_path / "mine.yaml").exists()


def test_a_file_of_another_kind_is_refused(played: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    update(path, [SMALL], ["random"], seeds=3)
    sentence = f"out is {path}, whose seeds is 3 and not 4; name another file"
    assert refusal("--out", str(path), "--configs", SMALL, "--seeds", "4") == f"disaggroute: {sentence}"
    assert refusal("--out", str(tmp_path / "mine")).endswith("it must end in .yaml")
    path.write_text(path.read_text().replace("seeds: 3", "seeds: 4"))
    sentence = f"{path}: configurations.{SMALL}.random: returns has 3 entries; it must have 4, one per seed"
    assert refusal("--out", str(path), "--seeds", "4") == f"disaggroute: {sentence}"


def test_the_command_shows_a_table_and_the_file(played: list[Task], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    arguments = ["--configs", SMALL, "--policies", "random,min-tpot(growth=0.5)", "--seeds", "2", "--out", str(path)]
    result = CliRunner().invoke(app, ["returns", "--workers", "1", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert f"{SMALL}, seeds 10000 to 10001" in result.stdout and str(path) in result.stdout
    assert all(str(parse(policy)) in result.stdout for policy in ("random", "min-tpot(growth=0.5)"))
