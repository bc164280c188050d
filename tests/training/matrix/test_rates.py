"""The file of saturation rates: what was searched for once is kept, and a file that is no such thing is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.matrix import rates
from disaggroute.training.matrix.rates import Rates

SCENARIO = Scenario.make(workload="chat")


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Searches that were made; each finds 9 requests per second."""
    made: list[Scenario] = []

    def search(scenario: Scenario, **_: object) -> SimpleNamespace:
        made.append(scenario)
        return SimpleNamespace(policy="round-robin", found=SimpleNamespace(share=0.84), rate=9.0, doubt="")

    monkeypatch.setattr(rates, "saturate", search)
    return made


def search(known: Rates, what: str) -> float:
    return known.searched("here", SCENARIO, {"what": what}, say=lambda _: None)


def test_a_rate_is_searched_for_once(tmp_path: Path, searches: list[Scenario]) -> None:
    assert search(Rates(tmp_path / "rates.json"), "a") == search(Rates(tmp_path / "rates.json"), "a") == 9
    assert len(searches) == 1


def test_two_processes_keep_the_rates_of_both(tmp_path: Path, searches: list[Scenario]) -> None:
    one, other = Rates(tmp_path / "rates.json"), Rates(tmp_path / "rates.json")
    search(one, "a")
    search(other, "b")
    assert len(json.loads((tmp_path / "rates.json").read_bytes())) == 2
    search(Rates(tmp_path / "rates.json"), "a")
    assert len(searches) == 2


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "1", '{"a": null}', '{"a": NaN}', '{"a": Infinity}', '{"a": 0}', '{"a": -1}', 100_000 * "["],
    ids=range(10),
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rates.json").write_text(content)
    with pytest.raises(ValueError, match=r"rates\.json is unreadable; delete it and start again"):
        Rates(tmp_path / "rates.json")
