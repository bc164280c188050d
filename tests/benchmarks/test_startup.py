"""Start-up is measured in processes of their own."""

from __future__ import annotations

import pytest

from disaggroute.benchmarks import startup
from disaggroute.benchmarks.interpreter import output_of, seconds_to_end


def test_imports_and_the_first_step_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "COLD_COMPILE", "")
    results = startup.measure(repeats=1, cold_repeats=1)
    names = ("interpreter", "import", "import-simulator", "first-step", "cold-compile")
    assert [r.name for r in results] == [f"startup/{name}" for name in names]
    assert {r.unit for r in results} == {"s"}


def test_the_cold_compile_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("IMPORT", "IMPORT_SIMULATOR", "FIRST_STEP"):
        monkeypatch.setattr(startup, program, "")
    assert "startup/cold-compile" not in [r.name for r in startup.measure(repeats=2, cold_repeats=0)]


def test_a_cold_compile_has_an_empty_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    look = "import os; assert os.listdir(os.environ['DISAGGROUTE_CACHE']) == []"
    monkeypatch.setattr(startup, "COLD_COMPILE", look)
    monkeypatch.setattr(startup, "FIRST_STEP", "")
    monkeypatch.setattr(startup, "IMPORT_SIMULATOR", "")
    assert startup.measure(repeats=1, cold_repeats=1)[-1].name == "startup/cold-compile"


def test_the_time_of_a_program_ends_with_its_last_line() -> None:
    assert seconds_to_end("import time; time.sleep(0.05)") >= 0.05


def test_a_program_that_fails_is_reported_by_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="a fresh interpreter failed: ValueError: no such luck"):
        output_of("raise ValueError('no such luck')")


def test_counts_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="repeats is 0; it must be at least 1"):
        startup.measure(repeats=0)
    with pytest.raises(ValueError, match="cold_repeats is -1; it must be at least 0"):
        startup.measure(cold_repeats=-1)
