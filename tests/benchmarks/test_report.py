"""A report is one JSON object that can be read again and compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from disaggroute.benchmarks.machine import Machine
from disaggroute.benchmarks.measurement import Result
from disaggroute.benchmarks.report import Report
from disaggroute.benchmarks.table import load_table, results_table, short, spread

SPEED = "simulator/2P4D/marginal-cost"


def report(*results: Result) -> Report:
    return Report(machine=Machine.this(), results=results)


def text(*parts: object) -> str:
    console = Console(width=80, no_color=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in parts:
        console.print(part)
    return console.export_text()


def test_the_json_has_the_machine_and_the_results() -> None:
    data = json.loads(report(Result.of("clone/300", "µs", [1.0, 2.0, 3.0])).json_text())
    assert data.keys() == {"machine", "results"}
    assert data["machine"].keys() >= {"cpu", "cores", "python", "numpy", "numba"}
    (result,) = data["results"]
    assert result.items() >= {"name": "clone/300", "value": 2.0, "unit": "µs", "min": 1.0, "max": 3.0}.items()
    assert result["repeats"] == 3 and "baseline" not in result


def test_a_report_that_was_written_is_read_back_the_same(tmp_path: Path) -> None:
    written = report(Result.of(SPEED, "requests/s", [1e6, 2e6], goodput=0.9))
    (tmp_path / "r.json").write_text(written.json_text())
    assert Report.read(tmp_path / "r.json") == written


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"machine": {}, "results": 3}'])
def test_another_file_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=r"r\.json: is no report of `disaggroute bench --json`"):
        Report.read(tmp_path / "r.json")


def test_a_gain_above_one_is_better_for_speeds_and_for_costs() -> None:
    new = report(Result.of(SPEED, "requests/s", [3.0]), Result.of("clone/300", "µs", [4.0]))
    old = report(Result.of(SPEED, "requests/s", [2.0]), Result.of("clone/300", "µs", [6.0]))
    assert [(r.baseline, r.gain) for r in new.compared_with(old).results] == [(2.0, 1.5), (6.0, 1.5)]


def test_a_result_that_the_baseline_lacks_is_left_alone() -> None:
    new, old = report(Result.of(SPEED, "requests/s", [3.0])), report()
    assert new.compared_with(old) == new


def test_a_result_in_another_unit_is_not_compared() -> None:
    new, old = report(Result.of("memory/1M", "MB", [3.0])), report(Result.of("memory/1M", "GB", [3.0]))
    with pytest.raises(ValueError, match=r"memory/1M is in GB; it must be in MB"):
        new.compared_with(old)


def test_the_table_shows_value_spread_and_which_goals_are_kept() -> None:
    shown = text(results_table(report(Result.of(SPEED, "requests/s", [3e6, 4e6, 5e6]))))
    for words in (SPEED, "4 M/s", "3–5 M", "3 M ✓", "6 M ✗"):
        assert words in shown


def test_a_goal_without_an_aim_shows_what_must_be() -> None:
    shown = text(results_table(report(Result.of("train/ppo", "steps/s", [2e4]))))
    assert "20 k/s" in shown and "30 k ✗" in shown


def test_what_was_not_measured_of_the_load_is_left_empty() -> None:
    shown = text(load_table(report(Result.of("vector/16", "decisions/s", [1e6], goodput=0.875, core_share=1.0))))
    assert shown.splitlines()[-1].split() == ["vector/16", "0.875", "1.00"]


def test_the_table_shows_the_gain_over_a_baseline() -> None:
    new = report(Result.of("simulator/16P48D/marginal-cost", "requests/s", [3.1e6, 3.3e6]))
    old = report(Result.of("simulator/16P48D/marginal-cost", "requests/s", [1.6e6, 1.6e6]))
    shown = text(results_table(new.compared_with(old)))
    assert "1.6 M" in shown and "×2.00" in shown


def test_goodput_and_requests_in_flight_stand_beside_the_speed() -> None:
    about = {"requests": 94_689, "rate": 13.97, "goodput": 0.907, "in_flight": 63.7, "core_share": 1.0}
    table = load_table(report(Result.of(SPEED, "requests/s", [3e6], **about)))
    shown = text(table)
    for words in ("94,689", "13.97", "0.907", "63.7", "1.00"):
        assert words in shown
    assert load_table(report(Result.of("clone/300", "µs", [1.0]))) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5.614e6, "5.61 M"),
        (112_300.0, "112 k"),
        (5134.2, "5134"),
        (409.3, "409"),
        (0.385, "0.385"),
        (0.00199, "0.002"),
    ],
)
def test_numbers_have_about_three_digits(value: float, shown: str) -> None:
    assert short(value) == shown


def test_a_single_repeat_has_no_spread() -> None:
    assert spread(Result.of("x", "s", [1.0])) == "–"
    assert spread(Result.of("x", "s", [900.0, 1.1e6])) == "900–1.1 M"


def test_the_machine_fits_a_line() -> None:
    line = str(Machine.this())
    assert "Python" in line and "Numba" in line and "\n" not in line


def test_a_goal_is_marked_with_a_sign_and_no_markup() -> None:
    console = Console(highlight=False, markup=False, width=80)
    with console.capture() as shown:
        console.print(results_table(report(Result.of("clone/300", "µs", [1.0]))))
    assert "5 ✓" in shown.get() and "0.7 ✗" in shown.get() and "[" not in shown.get()
