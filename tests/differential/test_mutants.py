"""Every fault that is planted in the fast core is caught by the random cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import FAULTS, Fault
from .mutants import ROOT, Outcome, table_of, try_fault, write_csv


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.key)
def test_a_fault_still_applies(fault: Fault) -> None:
    source = (ROOT / "envs" / "simulator" / fault.module).read_text()
    assert fault.planted(source) != source


def test_a_fault_that_no_longer_applies_says_so() -> None:
    fault = Fault("nothing", "loop.py", "text that is not there", "")
    with pytest.raises(ValueError, match=r"fault 'nothing' no longer applies: loop\.py holds .* 0 times"):
        fault.planted("while True:")


def test_fault_names_differ() -> None:
    assert len({fault.key for fault in FAULTS}) == len(FAULTS)


def test_outcomes_become_a_table_and_a_file(tmp_path: Path) -> None:
    outcomes = [Outcome("some fault", "loop.py", "caught", 4, 3, "request 0: end is 2, not 1")]
    assert table_of(outcomes).row_count == 1
    write_csv(outcomes, tmp_path / "new" / "mutants.csv")
    header, row = (tmp_path / "new" / "mutants.csv").read_text().splitlines()
    assert header == "fault,module,verdict,cases,seed,difference"
    assert row == 'some fault,loop.py,caught,4,3,"request 0: end is 2, not 1"'


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.key)
def test_the_random_cases_catch(fault: Fault) -> None:
    outcome = try_fault(fault)
    assert outcome.verdict == "caught", outcome


@pytest.mark.long
def test_the_core_passes_the_cases_that_catch_its_faults() -> None:
    outcome = try_fault(None)
    assert outcome.verdict == "equal", outcome
