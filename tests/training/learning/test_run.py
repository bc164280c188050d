"""Training runs: folders, checkpoints and learning curves that survive an interruption."""

from __future__ import annotations

import csv
import json
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from disaggroute.policies import registry
from disaggroute.training.learning import checkpoint
from disaggroute.training.learning.run import Candidate, TrainingRun

from .tasks import configured

CONTENT = configured().content()


def run_in(path: Path, **changes: Any) -> TrainingRun:
    return TrainingRun.open(path / "run", {**CONTENT, **changes}, 0)


def table(path: Path) -> list[dict[str, str]]:
    with (path / "run" / "learning.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def steps_for_tensorboard(path: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "run" / "tensorboard")).Reload()
    return [event.step for event in events.Scalars("gain")]


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / "run" / "checkpoints").iterdir())


def test_a_run_begins_without_a_checkpoint_and_goes_on_from_the_last_one(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert run.latest() is None
    run.checkpoint(2, b"two")
    run.checkpoint(4, b"four")
    assert run.latest() == (4, b"four")
    assert run_in(tmp_path).latest() == (4, b"four")


def test_the_last_two_checkpoints_stay(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for step in (2, 4, 6):
        run.checkpoint(step, b"state")
    assert [path.name for path in checkpoints(tmp_path)] == ["000000000004.checkpoint", "000000000006.checkpoint"]


def test_a_damaged_checkpoint_is_refused_and_the_one_before_goes_on_when_it_is_deleted(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.checkpoint(2, b"two")
    run.checkpoint(4, b"four")
    last = checkpoints(tmp_path)[-1]
    whole = last.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:-1] + b"X", b"[" * 100_000):
        last.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint is damaged; delete it, and training goes on from the one b"):
            run_in(tmp_path)
    last.unlink()
    assert run_in(tmp_path).latest() == (2, b"two")


@pytest.mark.parametrize("field", ["schema_version", "features_version"])
def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, field: str) -> None:
    run_in(tmp_path).checkpoint(2, b"two")
    path = checkpoints(tmp_path)[-1]
    head, _, content = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(head) | {field: 99}).encode() + b"\n" + content)
    with pytest.raises(ValueError, match=rf"{field} is 99; this version reads 1; train anew in another folder"):
        run_in(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run_in(tmp_path)
    path = tmp_path / "run" / "checkpoints" / "000000000002.checkpoint"
    checkpoint.write_checkpoint(path, b"two", key="another", step=2)
    with pytest.raises(ValueError, match="belongs to another training run; name another folder"):
        run_in(tmp_path)


def test_the_folder_of_another_configuration_or_seed_is_refused(tmp_path: Path) -> None:
    run_in(tmp_path)
    with pytest.raises(ValueError, match=r"runs of another configuration \(other budget\); name another folder"):
        run_in(tmp_path, budget=99)
    with pytest.raises(ValueError, match=r"another configuration \(other training_seed\)"):
        TrainingRun.open(tmp_path / "run", CONTENT, 1)


def test_rows_after_the_last_checkpoint_are_forgotten_when_it_goes_on(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for step in (1, 2, 3):
        run.log(step, {"gain": step / 10})
        if step == 2:
            run.checkpoint(2, b"two")
    run.finish([])
    assert [row["step"] for row in table(tmp_path)] == ["1", "2", "3"]

    again = run_in(tmp_path)
    assert [row["step"] for row in again.curve] == [1, 2]
    for step in (3, 4):
        again.log(step, {"gain": step / 10}, {"speed": 3.0})
    again.finish([])
    assert [(row["step"], row["gain"]) for row in table(tmp_path)] == [(str(k), str(k / 10)) for k in (1, 2, 3, 4)]
    assert steps_for_tensorboard(tmp_path) == [1, 2, 3, 4]


def test_speeds_are_told_to_tensorboard_alone(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.log(1, {"gain": 0.5}, {"speed": 100.0})
    run.finish([])
    assert table(tmp_path) == [{"step": "1", "gain": "0.5"}]


def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = run_in(tmp_path)
    used, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, unlimited))
    try:
        with pytest.raises(OSError, match=r"cannot write .*/tensorboard/events\.out\S+: file too large"):
            for step in range(1, 1_000):
                run.log(step, {"a long name " * 20: 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (used, unlimited))
    assert capfd.readouterr().err == ""


def test_without_tensorboard_it_says_so_and_the_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    said: list[str] = []
    run = TrainingRun.open(tmp_path / "run", CONTENT, 0, say=said.append)
    run.log(1, {"gain": 0.5})
    run.checkpoint(1, b"one")
    run.finish([])
    assert said == ["TensorBoard is not installed; the learning curve is in learning.csv and learning.png alone"]
    assert table(tmp_path) == [{"step": "1", "gain": "0.5"}]


def test_an_unreadable_learning_curve_is_refused(tmp_path: Path) -> None:
    run_in(tmp_path).finish([])
    (tmp_path / "run" / "learning.csv").write_text("step,gain\nx,y\n")
    with pytest.raises(ValueError, match="is not a readable learning curve; delete the folder and train again"):
        run_in(tmp_path)


def test_candidates_become_policy_files(tmp_path: Path) -> None:
    policy = registry.make("linear", decode={"index": 1.0})
    files = run_in(tmp_path).finish([Candidate("mean after 3 generations", policy)])
    file = files["mean after 3 generations"]
    assert file.name == "mean-after-3-generations.yaml"
    assert registry.parse(f"linear@{file}").hash == policy.hash
