"""A small evaluation that the tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.report.material import Material, gather
from disaggroute.training.results import read_results

SCENARIO = Scenario.make(workload="mixed-bursty-a40", topology="1P2D", rate=12, duration_s=40, warmup_s=5)
POLICIES = ("least-loaded", "round-robin", "marginal-cost(w_q=0.1)")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder of three policies and four seeds; not to be changed."""
    out = tmp_path_factory.mktemp("report") / "r"
    evaluate(SCENARIO, POLICIES, range(4), out=out, workers=1)
    return out


@pytest.fixture(scope="session")
def material(folder: Path) -> Material:
    return gather(read_results(folder))
