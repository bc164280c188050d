"""Processes that measure themselves, and the speeds that come of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disaggroute.benchmarks.peers import comparison, processes
from disaggroute.benchmarks.peers.match import Match
from disaggroute.benchmarks.peers.processes import Task, Times
from disaggroute.envs import traces


def test_speeds_are_requests_per_cpu_second_and_ratios_are_taken_round_by_round() -> None:
    def times(start: float, replay: float, simulation: float, process: float) -> Times:
        return Times(
            start_s=start, replay_s=replay, simulation_s=simulation, process_s=process, completed=1_000, versions={}
        )

    rounds = [
        (times(0.1, 1.0, 0.5, 2.0), times(0.5, 0.1, 0.01, 1.0)),
        (times(0.3, 2.0, 1.0, 4.0), times(0.7, 0.1, 0.01, 1.0)),
    ]
    found = {result.name: result for result in comparison.speeds(rounds, 1_000)}
    assert found["peers/dynamo/simulation"].value == pytest.approx(1_500)
    assert found["peers/disaggroute/simulation"].value == pytest.approx(100_000)
    ratio = found["peers/ratio/process"]
    assert (ratio.min, ratio.value, ratio.max) == pytest.approx((2, 3, 4)) and ratio.repeats == 2
    assert found["peers/dynamo/start-up"].value == pytest.approx(0.2)
    assert found["peers/disaggroute/start-up"].value == pytest.approx(0.6)


def test_our_process_measures_itself_and_serves_every_request(drawn: Match, tmp_path: Path) -> None:
    file = traces.write(drawn.trace, tmp_path / "trace.csv")
    times = processes.run_ours(Task(str(file), str(file), str(tmp_path / "result.json"), {}))
    assert times.completed == len(drawn.trace)
    assert 0 < times.simulation_s < times.replay_s
    assert times.start_s + times.replay_s <= times.process_s


def test_a_process_that_fails_is_reported_by_its_last_words(tmp_path: Path) -> None:
    missing = Task("nowhere.csv", "nowhere.csv", str(tmp_path / "result.json"), {})
    with pytest.raises(RuntimeError, match=r"disaggroute failed: .*nowhere\.csv"):
        processes.run_ours(missing)


def test_a_python_without_dynamo_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Dynamo failed: ModuleNotFoundError: No module named 'dynamo'"):
        processes.run_dynamo(Path(sys.executable), Task("", "", str(tmp_path / "result.json"), {}))
