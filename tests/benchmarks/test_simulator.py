"""The speed benchmark runs whole episodes and says what the cluster was doing."""

from __future__ import annotations

import numpy as np
import pytest

from disaggroute.benchmarks import drive
from disaggroute.benchmarks.drive import Drive, saturation_rate
from disaggroute.benchmarks.simulator import Episode, mean_in_flight, measure
from disaggroute.envs.records import RECORD
from disaggroute.envs.simulator import simulate
from disaggroute.policies import registry


def test_each_policy_gets_a_speed_with_goodput_and_requests_in_flight() -> None:
    results = measure("2P4D", 13.97, policies=["round-robin", "marginal-cost"], requests=600, repeats=2)
    assert [(r.name, r.unit) for r in results] == [
        ("simulator/2P4D/round-robin", "requests/s"),
        ("simulator/2P4D/marginal-cost", "requests/s"),
        ("simulator/2P4D/first-touch", "ns/request"),
    ]
    for result in results[:2]:
        assert result.repeats == 2 and 0 < result.min <= result.value <= result.max
        assert 0 < result.details["goodput"] <= 1 and result.details["in_flight"] > 0
        assert result.details["rate"] == 13.97 and result.details["requests"] > 0
    assert results[2].repeats == 4


def test_a_timed_episode_leaves_the_records_of_an_ordinary_simulation() -> None:
    made = Drive.make("2P4D", 13.97, 500, 3)
    episode = Episode.run(made, registry.make("least-loaded"), 3)
    result = simulate(made.trace, made.cluster, policy=registry.make("least-loaded"), seed=3)
    assert np.array_equal(episode.records, result.records)


def test_mean_requests_in_flight_is_the_time_in_the_system_over_the_span() -> None:
    trace = Drive.make("2P4D", 13.97, 500, 0).trace.select(slice(0, 2))
    records = np.zeros(2, RECORD)
    records["end"] = trace.arrival[0] + 100, trace.arrival[1] + 100
    span = int(trace.arrival[1] - trace.arrival[0]) + 100
    assert mean_in_flight(records, trace) == pytest.approx(200 / span)


def test_a_stored_saturation_rate_is_used_without_a_search() -> None:
    said: list[str] = []
    assert saturation_rate("2P4D", said.append) > 0 and said == []


def test_a_rate_that_is_not_stored_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(scenario: object, say: object) -> object:
        return type("Found", (), {"rate": 7.5})

    monkeypatch.setattr("disaggroute.training.saturation.saturate", found)
    said: list[str] = []
    assert saturation_rate("3P5D", said.append) == 7.5
    assert "3P5D: no saturation rate is stored" in said[0]


def test_a_trace_without_requests_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Drive.make("2P4D", 13.97, 500, 0).trace.select(slice(0, 0))
    monkeypatch.setattr(drive.workloads.Workload, "generate", lambda *_: made)
    with pytest.raises(ValueError, match="requests is 1; with seed 0 none arrives"):
        Drive.make("2P4D", 13.97, 1, 0)


@pytest.mark.parametrize("field", ["requests", "repeats"])
def test_a_count_below_one_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        measure("2P4D", 13.97, **{field: 0})  # type: ignore[arg-type]
