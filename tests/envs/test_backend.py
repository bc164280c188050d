"""Backends: by name, and the simulator as one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import backend as backends
from disaggroute.envs.backend import SimulatorBackend
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=10, duration_s=10, warmup_s=2)


@pytest.fixture
def simulator() -> SimulatorBackend:
    return SimulatorBackend(Setting.of(CHAT), registry.parse)


def test_the_simulators_backend_gives_what_a_setting_simulates(simulator: SimulatorBackend, tmp_path: Path) -> None:
    setting = simulator.setting
    prepared = setting.prepare(3)
    outcome = simulator.run(
        prepared, "power-of-two", 3, log_decisions=True, place=tmp_path / "nothing", say=lambda _: None
    )
    plain = setting.simulate(prepared, registry.parse("power-of-two"), 3, log_decisions=True)
    assert np.array_equal(outcome.records, plain.records) and np.array_equal(outcome.decisions, plain.decisions)
    assert dict(outcome.columns) == {} and not (tmp_path / "nothing").exists()
    assert simulator.configuration() == {} and not simulator.serial


def test_another_rate_changes_the_rate_alone(simulator: SimulatorBackend) -> None:
    other = simulator.at_rate(12.0).setting
    assert other.scenario == CHAT.at_rate(12.0) and other.cluster is simulator.setting.cluster


def test_a_backend_is_made_by_its_name(monkeypatch: pytest.MonkeyPatch, simulator: SimulatorBackend) -> None:
    monkeypatch.setattr(backends, "_factories", {})
    asked: list[Any] = []
    backends.register("mine", lambda scenario, **options: asked.append((scenario, options)) or simulator)
    assert backends.names() == ("mine", "simulator")
    assert backends.make("mine", CHAT, cluster="c") is simulator and asked == [(CHAT, {"cluster": "c"})]
    with pytest.raises(ValueError, match="unknown backend 'mne'; nearest: mine"):
        backends.make("mne", CHAT)
