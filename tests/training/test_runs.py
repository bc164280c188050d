"""The results folder: keyed by content, atomic, resumable."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from disaggroute.envs.records import RECORD
from disaggroute.envs.trace import Trace
from disaggroute.envs.window import Window
from disaggroute.training.metrics import summarise
from disaggroute.training.runs import (
    LOCK,
    RESULTS_SCHEMA,
    ResultsFolder,
    Run,
    append_line,
    atomic_file,
    fingerprint,
    parquet_bytes,
    write_atomically,
)

POLICY: dict[str, Any] = {"name": "round-robin", "params": {}, "hash": "0123456789abcdef"}
CONFIGURATION = {"workload": "chat", "rate": 3.5}


def make_run(folder: ResultsFolder, seed: int, label: str = "round-robin", failed: int = 0) -> Run:
    records = np.zeros(4, RECORD)
    records["status"][:failed] = 1
    zeros = np.zeros(4, np.int64)
    trace = Trace(zeros, zeros + 5, zeros + 1, zeros, zeros, zeros + 9, zeros + 9)
    summary = summarise(records, trace, Window(0, 100), pools={"mixed": 1}, gpus=1)
    policy = POLICY | {"name": label}
    return Run(
        schema_version=RESULTS_SCHEMA,
        experiment=folder.key,
        label=label,
        policy=policy,
        seed=seed,
        summary=summary,
    )


def test_the_key_depends_on_every_value_and_on_no_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 1, "b": 3})


def test_a_stored_run_is_read_back_with_its_infinite_delays(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "new" / "results", CONFIGURATION)
    run = make_run(folder, 7, failed=2)
    assert folder.read(POLICY, 7) is None
    folder.write(run)
    again = ResultsFolder.open(folder.path, CONFIGURATION).read(POLICY, 7)
    assert again is not None and again.model_dump_json() == run.model_dump_json()
    assert again.summary.e2e.p99 == float("inf")


def test_a_run_without_records_is_still_to_do_where_records_are_wanted(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    folder.write(make_run(folder, 1))
    assert folder.read(POLICY, 1, records=True) is None
    folder.write(make_run(folder, 1), parquet_bytes(pa.table({"met": [True]})))
    assert folder.read(POLICY, 1, records=True) is not None


def test_a_folder_of_another_configuration_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    with pytest.raises(ValueError, match=r"holds runs of another configuration \(other rate\)"):
        ResultsFolder.open(tmp_path / "r", CONFIGURATION | {"rate": 4.0})


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("…")
    with pytest.raises(ValueError, match="holds other files"):
        ResultsFolder.open(tmp_path, CONFIGURATION)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_in_which_all_failed_before_anything_was_done_goes_again(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ResultsFolder.opened(tmp_path / "a" / "r", CONFIGURATION) as folder:
        (folder.place("live", POLICY, 7) / "attempt-1").mkdir(parents=True)
        (folder.place("live", POLICY, 7) / LOCK).touch()
        (folder.path / "evaluation.json").touch()
        raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["live/a-1/7/attempt-1/client.jsonl", "runs/a-1/7.json", ".gitignore"])
def test_a_folder_in_which_something_was_left_stays(tmp_path: Path, left: str) -> None:
    with pytest.raises(RuntimeError), ResultsFolder.opened(tmp_path / "r", CONFIGURATION) as folder:
        (folder.path / left).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / left).touch()
        raise RuntimeError
    assert (tmp_path / "r" / left).exists() and (tmp_path / "r" / "experiment.json").exists()


def test_a_folder_that_was_there_before_or_that_another_process_uses_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError), ResultsFolder.opened(tmp_path / "empty", CONFIGURATION):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"] and not list((tmp_path / "empty").iterdir())

    first = ResultsFolder.opened(tmp_path / "r", CONFIGURATION)
    first.__enter__()
    with ResultsFolder.opened(tmp_path / "r", CONFIGURATION) as folder:
        error = RuntimeError()
        first.__exit__(RuntimeError, error, None)
        assert (folder.path / "experiment.json").exists()


def test_an_unreadable_note_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text("[1")
    with pytest.raises(ValueError, match=r"experiment\.json is unreadable"):
        ResultsFolder.open(tmp_path, CONFIGURATION)


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    folder.write(make_run(folder, 1))
    path = folder.run_path(POLICY, 1)
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match=r"1\.json is not a readable run"):
        folder.read(POLICY, 1)


def test_a_run_that_was_copied_from_another_experiment_is_refused(tmp_path: Path) -> None:
    one = ResultsFolder.open(tmp_path / "one", CONFIGURATION)
    two = ResultsFolder.open(tmp_path / "two", CONFIGURATION | {"rate": 4.0})
    one.write(make_run(one, 1))
    target = two.run_path(POLICY, 1)
    target.parent.mkdir(parents=True)
    target.write_bytes(one.run_path(POLICY, 1).read_bytes())
    with pytest.raises(ValueError, match="belongs to another configuration"):
        two.read(POLICY, 1)


def test_policies_of_one_name_with_other_parameters_lie_apart(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    assert folder.run_path(POLICY, 1) != folder.run_path(POLICY | {"hash": "f" * 16}, 1)
    assert folder.run_path(POLICY | {"name": "a/b (c)"}, 1).is_relative_to(folder.path / "runs")


def test_the_summary_has_one_row_per_run_in_the_order_of_policies_and_seeds(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    for label, seed in (("round-robin", 11), ("least-loaded", 9), ("round-robin", 2)):
        folder.write(make_run(folder, seed, label))
    path = folder.write_summary(folder.runs())
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("least-loaded", "9"),
        ("round-robin", "2"),
        ("round-robin", "11"),
    ]
    assert {row["schema_version"] for row in rows} == {str(RESULTS_SCHEMA)}


def test_records_of_several_runs_become_one_table(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    runs = [make_run(folder, 1, "a"), make_run(folder, 1, "b"), make_run(folder, 1, "c")]
    for run in runs[:2]:
        label = pa.array([run.label]).dictionary_encode()
        folder.write(run, parquet_bytes(pa.table({"policy": label, "met": [True]})))
    path = folder.write_records(runs)
    assert path is not None
    assert pq.read_table(path)["policy"].to_pylist() == ["a", "b"]


def test_no_records_no_table(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    assert folder.write_records([make_run(folder, 1)]) is None


def test_every_json_file_carries_the_schema_version(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    folder.write(make_run(folder, 1))
    for path in folder.path.rglob("*.json"):
        assert json.loads(path.read_text())["schema_version"] == RESULTS_SCHEMA


def test_what_a_killed_process_left_half_written_is_swept_away(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    (folder.path / "runs").mkdir()
    dead = folder.path / "runs" / ".1.json.999999999.tmp"
    alive = folder.path / "runs" / f".2.json.{os.getpid()}.tmp"
    dead.write_text("{")
    alive.write_text("{")
    ResultsFolder.open(folder.path, CONFIGURATION)
    assert not dead.exists() and alive.exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
def test_a_process_that_has_ended_is_no_owner_even_when_nobody_has_asked_how(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    left = folder.path / f".1.json.{process.pid}.tmp"
    left.write_text("{")
    ResultsFolder.open(folder.path, CONFIGURATION)
    assert not left.exists()
    process.wait()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EACCES])
def test_a_failed_write_leaves_the_old_file_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    path = tmp_path / "summary.csv"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=rf"cannot write .*summary\.csv: {os.strerror(reason).lower()}"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["summary.csv"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_that_is_written_piece_by_piece_is_whole_or_not_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "new" / "timeline.json"
    with pytest.raises(error), atomic_file(path) as file:
        file.write(b"half")
        raise error
    assert list(path.parent.iterdir()) == []
    with atomic_file(path) as file:
        file.write(b"one ")
        file.write(b"two")
        assert not path.exists()
    assert path.read_bytes() == b"one two" and list(path.parent.iterdir()) == [path]


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="not a directory"):
        ResultsFolder.open(tmp_path / "file" / "results", CONFIGURATION)


def test_lines_are_added_to_the_end_of_a_log(tmp_path: Path) -> None:
    for line in ("one", "two"):
        append_line(tmp_path / "logs" / "held-out.log", line)
    assert (tmp_path / "logs" / "held-out.log").read_text() == "one\ntwo\n"
    with pytest.raises(OSError, match="cannot write"):
        append_line(tmp_path, "three")


@pytest.mark.parametrize("text", ["[]", '{"key": "x", "configuration": 3}', '{"key": "x"}', "\0", 100_000 * "["])
def test_a_note_of_another_shape_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ValueError, match=r"experiment\.json is unreadable; name another folder"):
        ResultsFolder.open(tmp_path, CONFIGURATION)


def test_a_stray_file_among_the_runs_is_named(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    folder.write(make_run(folder, 1))
    stray = folder.run_path(POLICY, 2)
    stray.write_text("junk")
    with pytest.raises(ValueError, match=r"2\.json is not a readable run; delete it and start again"):
        folder.runs()


def test_two_processes_may_begin_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Path.iterdir

    def after_the_other(folder: Path) -> Iterator[Path]:
        monkeypatch.undo()
        ResultsFolder.open(tmp_path, CONFIGURATION)
        return look(folder)

    monkeypatch.setattr(Path, "iterdir", after_the_other)
    assert ResultsFolder.open(tmp_path, CONFIGURATION).key == fingerprint(CONFIGURATION)


def test_records_of_another_kind_are_named(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    runs = [make_run(folder, seed) for seed in (1, 2)]
    folder.write(runs[0], parquet_bytes(pa.table({"a": [1]})))
    folder.write(runs[1], parquet_bytes(pa.table({"a": ["text"]})))
    with pytest.raises(ValueError, match=r"2\.parquet holds no readable records; delete it and start again"):
        folder.write_records(runs)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = ResultsFolder.open(tmp_path / "r", CONFIGURATION)
    run = make_run(folder, 1)
    folder.write(run, parquet_bytes(pa.table({"a": [1]})))
    folder.records_path(run.policy, 1).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"1\.parquet holds no readable records; delete it and start again"):
        folder.write_records([run])
