"""Worker processes give the same results as this process, end with it, and not later."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from disaggroute.training.executors.choice import executor_of
from disaggroute.training.executors.process import ProcessExecutor, core_count

from .tasks import own_pid


def test_one_worker_runs_in_this_process() -> None:
    with ProcessExecutor(1) as executor:
        assert list(executor.run(lambda _: os.getpid(), [1, 2])) == [os.getpid()] * 2


def test_workers_end_with_their_executor_and_not_before() -> None:
    with ProcessExecutor(2) as executor:
        assert os.getpid() not in executor.run(own_pid, [1, 2])
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


def test_an_executor_that_is_given_goes_on_after_its_use() -> None:
    with ProcessExecutor(2) as executor:
        with executor_of(executor) as same:
            assert same is executor
            assert sorted(same.run(abs, [-2, -1])) == [1, 2]
        assert multiprocessing.active_children()
        assert sorted(executor.run(abs, [-4, -3])) == [3, 4]
    assert not multiprocessing.active_children()


def test_workers_that_are_only_counted_end_with_their_use() -> None:
    with executor_of(2) as executor:
        assert sorted(executor.run(abs, [-2, -1])) == [1, 2]
    assert not multiprocessing.active_children()


def test_the_default_is_one_worker_per_core_and_none_is_refused() -> None:
    assert ProcessExecutor().count == core_count() >= 1
    with pytest.raises(ValueError, match="workers is 0; it must be at least 1"):
        ProcessExecutor(0)
