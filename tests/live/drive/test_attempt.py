"""Attempts: a run that was cut anywhere is done anew, a whole one never is, and no request counts twice."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disaggroute.live.drive.assembly import assemble
from disaggroute.live.drive.attempt import Attempt, attempts, last_whole, new_attempt, run_of, whole

from .files import CLUSTER, about, attempt, observation, record, write

N = 6


def complete(place: Attempt, late: int = 0) -> None:
    """All of a run; requests end in any order, in either file."""
    order = list(range(N))
    random.Random(place.number).shuffle(order)
    write(place, [observation(k, sent=1_000 + k + late) for k in order], [record(k) for k in reversed(order)])


def cut(path: Path, share: float) -> None:
    """What a kill or a full disk leaves of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])


@given(client=st.floats(0, 1), router=st.floats(0, 1))
def test_wherever_both_files_were_cut_each_request_is_there_exactly_once(client: float, router: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        first = new_attempt(place)
        complete(first)
        cut(first.client, client)
        cut(first.router, router)
        driven: list[int] = []

        def drive(again: Attempt) -> None:
            driven.append(again.number)
            complete(again, late=50)

        outcome = assemble(run_of(place, about(N), drive), CLUSTER)
        assert len(outcome.records) == N
        late = set((outcome.records["arrival"] - 1_000 - range(N)).tolist())
        assert late == ({50} if driven else {0})  # all of one attempt
        assert driven in ([], [2])
        assert sorted(outcome.decisions["request"].tolist()) == list(range(N))


@pytest.mark.parametrize("name", ["client", "router"])
def test_a_file_that_lacks_its_last_byte_only_is_no_whole_run(tmp_path: Path, name: str) -> None:
    complete(new_attempt(tmp_path))
    file = getattr(attempt(tmp_path), name)
    file.write_bytes(file.read_bytes()[:-2])
    assert whole(attempt(tmp_path), about(N)) is None


def test_a_whole_run_is_not_driven_again(tmp_path: Path) -> None:
    complete(new_attempt(tmp_path))

    def drive(_: Attempt) -> None:
        raise AssertionError

    assert len(run_of(tmp_path, about(N), drive).seen) == N


def test_an_attempt_without_its_end_is_not_whole_though_all_requests_are_there(tmp_path: Path) -> None:
    write(attempt(tmp_path), [observation(0)], [record(0)], ended=False)
    assert whole(attempt(tmp_path), about(1)) is None


def test_an_answer_that_the_router_has_not_recorded_makes_an_attempt_part_of_a_run(tmp_path: Path) -> None:
    write(attempt(tmp_path), [observation(0), observation(1)], [record(0)])
    assert whole(attempt(tmp_path), about(2)) is None


@pytest.mark.parametrize("change", [{"trace": "xyz"}, {"policy": "random"}, {"seed": 4}, {"requests": 2}])
def test_an_attempt_at_another_run_is_not_taken(tmp_path: Path, change: dict[str, object]) -> None:
    write(attempt(tmp_path), [observation(0)], [record(0)])
    assert whole(attempt(tmp_path), about(1)) is not None
    assert whole(attempt(tmp_path), about(1) | change) is None


@pytest.mark.parametrize("who", ["client", "router"])
def test_a_request_that_stands_in_a_file_twice_is_told(tmp_path: Path, who: str) -> None:
    twice = 2 if who == "client" else 1, 2 if who == "router" else 1
    write(attempt(tmp_path), [observation(0)] * twice[0], [record(0)] * twice[1])
    with pytest.raises(ValueError, match=rf"{who}\.jsonl holds request .*0 twice; delete .*attempt-1 and start again"):
        whole(attempt(tmp_path), about(1))


def test_the_last_whole_attempt_counts(tmp_path: Path) -> None:
    complete(attempt(tmp_path, 9))
    complete(attempt(tmp_path, 10), late=7)
    attempt(tmp_path, 11).path.mkdir()
    (tmp_path / "attempt-x").mkdir()
    kept = last_whole(tmp_path, about(N))
    assert kept is not None and kept.seen[0].sent == 1_007
    assert [each.number for each in attempts(tmp_path)] == [11, 10, 9]
    assert new_attempt(tmp_path).number == 12


def test_a_run_that_left_no_whole_attempt_is_told(tmp_path: Path) -> None:
    def drive(place: Attempt) -> None:
        write(place, [observation(0)], [])

    with pytest.raises(RuntimeError, match="attempt-1 lacks records of requests that were answered"):
        run_of(tmp_path, about(1), drive)


@pytest.mark.parametrize(
    ("name", "line", "changes"),
    [
        ("client", 0, {"origin_ns": None}),
        ("client", 2, {"due": 10**30}),
        ("client", 2, {"index": "2"}),
        ("client", 2, {"colour": "red"}),
        ("client", 2, {"first": None}),
        ("router", 0, {"started_ns": "now"}),
        ("router", 0, {"kind": "something else"}),
        ("router", 2, {"id": ["run-1"]}),
        ("router", 2, {"seen_decode": [1]}),
        ("router", 2, {"attempts": None}),
    ],
)
def test_a_damaged_file_is_named_with_the_way_on(tmp_path: Path, name: str, line: int, changes: dict[str, Any]) -> None:
    place = attempt(tmp_path)
    complete(place)
    file = getattr(place, name)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = json.dumps(json.loads(lines[line]) | changes).encode() + b"\n"
    file.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=r"attempt-1.*; delete (it|\S+/attempt-1) and start again$"):
        kept = whole(place, about(N))
        assert kept is not None
        assemble(kept, CLUSTER)
