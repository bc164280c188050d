"""What every executor does: the same results, each once, whatever happens to its workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.executors import EXECUTORS
from disaggroute.training.executors.choice import make_executor
from disaggroute.training.executors.executor import Executor

from .tasks import killed_once, own_pid, unlucky

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=10, duration_s=20, warmup_s=5)


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with make_executor(request.param, workers=2) as made:
        yield made


def test_every_task_is_done_once_elsewhere(executor: Executor) -> None:
    assert executor.count == 2
    assert sorted(executor.run(abs, [-3, -1, -2])) == [1, 2, 3]
    assert sorted(executor.run(abs, [-5, -4])) == [4, 5]
    assert os.getpid() not in executor.run(own_pid, [1, 2])


def test_nothing_to_do_is_done(executor: Executor) -> None:
    assert list(executor.run(abs, [])) == []


class Counted(Sequence[int]):
    """Tasks that know how many were taken."""

    def __init__(self, length: int) -> None:
        self.length, self.taken = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: Any) -> Any:
        self.taken += 1
        return -place


def test_of_many_tasks_only_a_few_are_handed_over_at_a_time(executor: Executor) -> None:
    tasks = Counted(100_000)
    results = executor.run(abs, tasks)
    assert next(results) < 10 and tasks.taken <= 10
    results.close()  # type: ignore[attr-defined]
    assert sorted(executor.run(abs, [-2, -1])) == [1, 2]


def test_the_error_of_a_task_reaches_the_caller(executor: Executor) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(executor.run(int, ["1", "x", "2"]))


def test_an_error_that_cannot_travel_is_told_in_words(executor: Executor) -> None:
    with pytest.raises(RuntimeError, match="Unlucky: bad"):
        list(executor.run(unlucky, [1, 2]))


def test_runs_of_a_killed_worker_are_done_again(
    executor: Executor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sorted(executor.run(killed_once, [(tmp_path / "mark", k) for k in range(9)])) == list(range(9))
    assert (tmp_path / "mark").exists()
    assert sorted(executor.run(abs, [-2, -1])) == [1, 2]
    assert capfd.readouterr().out == ""


def test_a_run_whose_worker_dies_every_time_is_given_up_in_one_sentence(executor: Executor) -> None:
    sentence = (
        r"^a worker .*\(.*\), 3 times in the same run; fewer workers may help, and the same command goes on from what "
        "is finished$"
    )
    with pytest.raises(RuntimeError, match=sentence):
        list(executor.run(os._exit, [3, 3]))
    assert sorted(executor.run(abs, [-2, -1])) == [1, 2]


def test_an_evaluation_writes_the_bytes_of_a_single_process(executor: Executor, tmp_path: Path) -> None:
    policies, seeds = ("round-robin", "marginal-cost"), range(100, 103)
    evaluate(CHAT, policies, seeds, out=tmp_path / "one", workers=1, records="all")
    evaluate(CHAT, policies, seeds, out=tmp_path / "many", workers=executor, records="all")
    assert content(tmp_path / "one") == content(tmp_path / "many")


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
