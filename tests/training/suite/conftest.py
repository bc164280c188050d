"""Small scenarios and a small roster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.training.suite import config, roster
from disaggroute.training.suite.config import SuiteScenario
from disaggroute.training.suite.roster import Roster

SCENARIO: dict[str, Any] = {
    "version": 1,
    "notes": "A few seconds.",
    "workload": "mixed-bursty-a40",
    "rate": 14,
    "duration_s": 20,
    "warmup_s": 5,
    "tuned_on": "mixed-bursty-a40",
    "seeds": {"validation": {"first": 10_000, "count": 4}},
}

ROSTER: dict[str, Any] = {
    "zero": "round-robin",
    "reference": "marginal-cost (tuned)",
    "scenarios": ["chat"],
    "policies": [
        "round-robin",
        "least-loaded",
        {"name": "marginal-cost (tuned)", "policy": "marginal-cost@{condition}", "heuristic": True}
        | {"otherwise": "marginal-cost@{tuned_on}"},
        {"name": "slow", "policy": "power-of-two", "most_instances": 6, "seeds": 2},
    ],
}

Make = Callable[..., SuiteScenario]


@pytest.fixture(scope="session")
def lineup(tmp_path_factory: pytest.TempPathFactory) -> Roster:
    path = tmp_path_factory.mktemp("roster") / "roster.yaml"
    path.write_text(yaml.safe_dump(ROSTER))
    return roster.load(path)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a small scenario with changes."""

    def made(name: str, **changes: Any) -> SuiteScenario:
        path: Path = tmp_path_factory.mktemp("scenario") / f"{name}.yaml"
        path.write_text(yaml.safe_dump(SCENARIO | {"name": name} | changes))
        return config.load(str(path))

    return made
