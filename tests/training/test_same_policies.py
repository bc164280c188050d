"""A live folder keeps one set of policies, also where its note of them is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disaggroute.training.evaluation import check_same_policies
from disaggroute.training.results import ASKED, Asked, write_asked
from disaggroute.training.runs import ResultsFolder

from .test_runs import POLICY, make_run

OTHER: dict[str, Any] = {"name": "card", "params": {}, "hash": "f" * 16}
BOTH: dict[str, dict[str, Any]] = {"round-robin": POLICY, "card": OTHER}


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """One of two policies has a run."""
    folder = ResultsFolder.open(tmp_path / "r", {"rate": 3.5})
    folder.write(make_run(folder, 7))
    write_asked(folder, Asked(command="", policies=BOTH, seeds=(7,)))
    return folder


def test_the_set_that_was_asked_for_is_that_of_the_folder(folder: ResultsFolder) -> None:
    check_same_policies(folder, BOTH)
    with pytest.raises(ValueError, match=r"but .* was measured with round-robin, card, in turn"):
        check_same_policies(folder, {"round-robin": POLICY})


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[]", b'{"schema_version": 1}'])
def test_where_the_note_is_lost_the_runs_say_what_was_measured(folder: ResultsFolder, content: bytes | None) -> None:
    note = folder.path / ASKED
    note.unlink() if content is None else note.write_bytes(content)
    check_same_policies(folder, BOTH)
    with pytest.raises(ValueError, match=r"policies is card, but .* was measured with round-robin, in turn"):
        check_same_policies(folder, {"card": OTHER})
