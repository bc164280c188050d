"""A run against its repeat."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.truth.truth import compare_with_simulator

from .conftest import Make
from .live_folder import MS, POLICIES, SCENARIO, Way, made_live, simulated


def jitter(seed: int):
    def change(columns: dict[str, np.ndarray]) -> None:
        random = np.random.default_rng(seed)
        late = np.abs(random.normal(0, 5, len(columns["arrival_ps"]))) * MS
        columns["first_token_ps"] += late.astype(np.int64)
        columns["last_token_ps"] += late.astype(np.int64)

    return change


def test_a_repeat_that_is_the_same_has_no_noise(live: Make) -> None:
    truth = compare_with_simulator(live(Way(1.0)), repeat=live(Way(1.0), name="again"))
    assert truth.noise is not None and truth.noise.deviation == 0.0
    for each in truth.noise.repeats.values():
        assert each.absolute == (0.0, 0.0, 0.0) and each.ks == 0.0
    assert all(run.alike == 1.0 for run in truth.noise.runs)


def test_noise_that_was_planted_shows_beside_the_error_of_the_model(live: Make) -> None:
    truth = compare_with_simulator(live(Way(), jitter(1)), repeat=live(Way(), jitter(2), name="again"))
    assert truth.noise is not None
    # The median of the difference of two half-normal delays of 5 ms, its sign left out, is 2.7 ms.
    assert truth.noise.repeats["ttft"].absolute[0] == pytest.approx(2.7e-3, rel=0.1)
    assert truth.noise.repeats["tpot"].absolute == (0.0, 0.0, 0.0)
    assert truth.noise.model["ttft"].requests == truth.noise.repeats["ttft"].requests
    assert "by the noise between repeats" in truth.ranking.interval


def test_requests_that_a_repeat_sent_elsewhere_are_counted(live: Make) -> None:
    def other(columns: dict[str, np.ndarray]) -> None:
        columns["decode"] = 1 - columns["decode"]

    truth = compare_with_simulator(live(), repeat=live(Way(), other, name="again"))
    assert truth.noise is not None and all(run.alike == 0.0 for run in truth.noise.runs)


def test_a_run_is_no_repeat_of_itself(live: Make) -> None:
    folder = live()
    with pytest.raises(ValueError, match="the run itself; name the folder of another evaluation"):
        compare_with_simulator(folder, repeat=folder)


def test_a_repeat_of_other_seeds_is_refused(live: Make, tmp_path: Path) -> None:
    other = made_live(simulated(tmp_path / "other", SCENARIO, POLICIES[:1], range(3, 4)), Way())
    words = r"has no run of round-robin with seed 2: of this policy it has seeds 3; a repeat has the same"
    with pytest.raises(ValueError, match=words):
        compare_with_simulator(live(), repeat=other)


def test_a_repeat_without_a_policy_is_refused(live: Make) -> None:
    folder, other = live(), live(name="again")
    asked = json.loads((other / "evaluation.json").read_text())
    del asked["policies"]["least-loaded"]
    (other / "evaluation.json").write_text(json.dumps(asked))
    with pytest.raises(ValueError, match="no run of least-loaded with seed 2: it has not this policy"):
        compare_with_simulator(folder, repeat=other)


def test_a_repeat_of_another_trace_is_refused(live: Make, tmp_path: Path) -> None:
    scenario = Scenario.make(**(SCENARIO.model_dump() | {"rate": 15}))
    other = made_live(simulated(tmp_path / "other", scenario), Way())
    with pytest.raises(ValueError, match=r"run of round-robin with seed 2 is of another trace: it has \d+ requests"):
        compare_with_simulator(live(), repeat=other)

    def longer(columns: dict[str, np.ndarray]) -> None:
        columns["prompt"][7] += 1

    with pytest.raises(ValueError, match=r"is of another trace: prompt of request 7 is \d+ for \d+"):
        compare_with_simulator(tmp_path / "live", repeat=live(Way(), longer, name="longer"))
    shutil.rmtree(other)
