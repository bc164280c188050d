"""Worker processes give the same results as this process, and end with it."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from disaggroute.training.workers import Workers, check_workers, core_count


def test_one_worker_runs_in_this_process() -> None:
    with Workers(1) as workers:
        assert list(workers.run(lambda _: os.getpid(), [1, 2])) == [os.getpid()] * 2


def test_two_workers_do_the_same_tasks_elsewhere() -> None:
    with Workers(2) as workers:
        assert sorted(workers.run(abs, [-3, -1, -2])) == [1, 2, 3]
        assert sorted(workers.run(abs, [-5, -4])) == [4, 5]
    assert not multiprocessing.active_children()


def test_workers_that_are_given_go_on_after_their_use() -> None:
    with Workers(2) as workers:
        with Workers.of(workers) as same:
            assert same is workers and check_workers(same) == 2
            assert sorted(same.run(abs, [-2, -1])) == [1, 2]
        assert multiprocessing.active_children()
        assert sorted(workers.run(abs, [-4, -3])) == [3, 4]
    assert not multiprocessing.active_children()


def test_workers_that_are_only_counted_end_with_their_use() -> None:
    with Workers.of(2) as workers:
        assert sorted(workers.run(abs, [-2, -1])) == [1, 2]
    assert not multiprocessing.active_children()


def test_the_error_of_a_task_reaches_the_caller_and_ends_the_workers() -> None:
    with pytest.raises(ValueError, match="invalid literal"), Workers(2) as workers:
        list(workers.run(int, ["1", "x", "2"]))


UNTOLD = """
class Unlucky(Exception):
    def __init__(self, one, two):
        super().__init__(one)

raise Unlucky("bad", "luck")
"""


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match="Unlucky: bad"), Workers(2) as workers:
        list(workers.run(exec, [UNTOLD, UNTOLD]))


def test_a_worker_that_dies_is_reported_in_one_sentence() -> None:
    with pytest.raises(RuntimeError, match="a worker process died"), Workers(2) as workers:
        list(workers.run(os._exit, [3, 3]))


def test_the_default_is_one_worker_per_core_and_none_is_refused() -> None:
    assert check_workers(None) == core_count() >= 1
    with pytest.raises(ValueError, match="workers is 0; it must be at least 1"):
        check_workers(0)
