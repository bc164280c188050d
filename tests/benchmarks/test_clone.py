"""The clone benchmark copies a state with the wanted number of requests in flight."""

from __future__ import annotations

import pytest

from disaggroute.benchmarks import clone
from disaggroute.benchmarks.clone import loaded_simulator, measure
from disaggroute.envs.simulator import run_policy
from disaggroute.policies import registry


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "SEARCHED", 3_000)


def test_every_way_of_copying_is_measured() -> None:
    results = measure(13.97, in_flight=40, times=100, repeats=2)
    assert [r.name for r in results] == [f"clone/40{way}" for way in ("", "/snapshot", "/restore", "/python")]
    for result in results:
        assert (result.unit, result.repeats, result.details["in_flight"]) == ("µs", 2, 40)
        assert 0 < result.min <= result.max


def test_the_state_has_as_many_requests_in_flight_as_asked_for() -> None:
    assert loaded_simulator(13.97, 40, 1).in_flight == 40


def test_the_state_goes_on_from_where_it_is() -> None:
    simulator = loaded_simulator(13.97, 40, 1)
    twin = simulator.clone()
    for each in (simulator, twin):
        run_policy(each, registry.make("marginal-cost"), 1)
        assert each.ended == len(each.trace)
    assert (simulator.records == twin.records).all()


def test_more_requests_than_are_ever_in_flight_are_refused() -> None:
    with pytest.raises(ValueError, match=r"in_flight is 5000; at 13\.97 requests/s 2P4D had at most \d+ in"):
        loaded_simulator(13.97, 5_000, 0)


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="times is 0; it must be at least 1"):
        measure(13.97, times=0)
