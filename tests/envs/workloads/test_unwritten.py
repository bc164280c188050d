"""Requests that are written where a simulator reads them are those of the trace they stand for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from disaggroute.envs.environment_config import EnvironmentConfig
from disaggroute.envs.episodes import Episodes
from disaggroute.envs.setting import Setting
from disaggroute.envs.simulator.layout import ROUTER_BITS
from disaggroute.envs.simulator.state import TRACE_ROW
from disaggroute.envs.traffic import FamilyTraffic
from disaggroute.envs.workloads import arrivals, make


def traffic_of(**overrides: object) -> FamilyTraffic:
    config = EnvironmentConfig.load("mixed-bursty-a40", **overrides)
    traffic = Setting.of(config.scenario).traffic
    assert isinstance(traffic, FamilyTraffic)
    return traffic


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_the_columns_of_the_trace(seed: int) -> None:
    traffic = traffic_of()
    trace, unwritten = traffic.trace(14.0, 100.0, seed), traffic.unwritten(14.0, 100.0, seed)
    assert unwritten is not None and len(unwritten) == len(trace)
    rows = np.full(len(trace), -1, np.int64).repeat(TRACE_ROW.itemsize // 8).view(TRACE_ROW)
    unwritten.write(rows)
    for name in ("arrival", "prompt", "output", "ttft_target", "tpot_target"):
        assert (rows[name] == getattr(trace, name)).all(), name
    assert (rows["who"] == trace.slo.astype(int) << ROUTER_BITS).all()
    assert (rows["predicted"] == 0).all()


def test_a_trace_is_made_where_targets_depend_on_the_request() -> None:
    assert traffic_of(targets="relative").unwritten(14.0, 100.0, 0) is None


def test_a_trace_is_made_where_a_request_might_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = traffic_of()
    monkeypatch.setattr("disaggroute.envs.workloads.unwritten.all_fit", lambda *_: False)
    assert traffic.unwritten(14.0, 100.0, 0) is None


def test_a_later_episode_has_the_trace_of_its_seed() -> None:
    config = EnvironmentConfig.load("mixed-bursty-a40", duration_s=20, warmup_s=5)
    episodes = Episodes(config, 1)
    for seed in (3, 4):
        episodes.begin(0, seed)
    expected = episodes.setting.traffic.trace(episodes.setting.scenario.rate, 25.0, 4)
    found = episodes.simulator(0).trace
    assert found.arrival.tolist() == expected.arrival.tolist() and found.output.tolist() == expected.output.tolist()


@pytest.mark.parametrize("rate", [0.02, 1.0, 60.0])
@pytest.mark.parametrize("process", [{"process": "mmpp", "ratio": 17.0}, {"process": "on-off"}])
def test_arrivals_in_one_pass_are_those_of_all_passes(
    rate: float, process: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    law = make("chat", arrivals=process | {"on_fraction": 0.3, "mean_on_s": 5.0}).config.arrivals

    def drawn() -> list[list[int]]:
        return [arrivals.arrival_times(law, rate, 300.0, seed).tolist() for seed in range(10)]

    one_pass = drawn()
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(arrivals, "_drawn_at_once", nothing)
    assert drawn() == one_pass
