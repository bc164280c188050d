"""Results read back from their folder alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training import evaluation as evaluation_module
from disaggroute.training.comparison import compare
from disaggroute.training.evaluation import Evaluation, evaluate
from disaggroute.training.results import ASKED, Asked, read_results
from disaggroute.training.runs import RESULTS_SCHEMA

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=10, duration_s=10, warmup_s=2)
POLICIES = ("round-robin", "least-loaded")


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluate(CHAT, POLICIES, range(100, 104), out=tmp_path_factory.mktemp("results") / "r", workers=1)


@pytest.fixture
def folder(evaluation: Evaluation, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(evaluation.folder.path, tmp_path / "copy"))


def run_card(folder: Path, name: str) -> dict[str, object]:
    """Name, parameters and hash of a policy."""
    return dict(json.loads(run_files(folder, name)[0].read_text())["policy"])


def run_files(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "runs").glob(f"{name}-*/*.json"))


def test_a_folder_tells_all_that_the_evaluation_knew(evaluation: Evaluation, folder: Path) -> None:
    results = read_results(folder)
    assert (results.labels, list(results.seeds), results.runs) == (POLICIES, list(evaluation.seeds), evaluation.runs)
    assert compare(results) == compare(evaluation)
    assert results.single is evaluation.single is False and results.missing == ""
    assert results.title.startswith("chat on 1p2d-a40-qwen2.5-3b: 10 requests/s")
    assert results.title.endswith("seeds 100 to 103")
    assert results.versions["results schema"] == str(RESULTS_SCHEMA)
    assert results.versions["experiment"] == evaluation.folder.key


def test_the_order_and_the_choice_of_the_last_evaluation_are_kept(folder: Path) -> None:
    evaluate(CHAT, ("least-loaded", "round-robin"), range(101, 103), out=folder, workers=1)
    results = read_results(folder)
    assert results.labels == ("least-loaded", "round-robin") and results.seeds == (101, 102)


def test_another_process_that_uses_the_folder_does_not_change_what_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_beside(*arguments: object) -> None:
        monkeypatch.undo()
        evaluate(CHAT, ("least-loaded",), range(102, 103), out=folder, workers=1)
        original(*arguments)  # type: ignore[arg-type]

    original = evaluation_module._run
    monkeypatch.setattr(evaluation_module, "_run", run_beside)
    mine = evaluate(CHAT, ("round-robin",), range(100, 102), out=folder, workers=1)
    assert read_results(folder).labels == ("round-robin",), "the last to end is the last evaluation"
    theirs = Asked(command="", policies={"least-loaded": run_card(folder, "least-loaded")}, seeds=(102,))
    assert read_results(folder, theirs).labels == ("least-loaded",)
    assert read_results(folder, mine.asked).seeds == (100, 101)


def test_an_unreadable_run_is_told_before_others_are_made(folder: Path) -> None:
    run_files(folder, "least-loaded")[0].write_text("{")
    with pytest.raises(ValueError, match=r"100\.json is not a readable run; delete it and start again"):
        evaluate(CHAT, ("round-robin",), range(200, 201), out=folder, workers=1)
    assert not list(folder.glob("runs/*/200.json"))


def test_a_policy_is_shown_under_the_name_that_was_asked_for_last(folder: Path) -> None:
    evaluate(CHAT, ("marginal-cost",), range(100, 101), out=folder, workers=1)
    evaluate(CHAT, ("marginal-cost(w_b=1)",), range(100, 101), out=folder, workers=1)
    assert read_results(folder).labels == ("marginal-cost(w_b=1)",)


def test_of_an_evaluation_that_broke_off_the_seeds_that_all_have_finished_are_shown(folder: Path) -> None:
    run_files(folder, "least-loaded")[2].unlink()
    results = read_results(folder)
    assert results.seeds == (100, 101, 103) and "seeds 100, 101 and 103" in results.title
    assert results.missing == "6 of 8 runs are shown: the evaluation has not finished"


def test_a_policy_that_has_not_begun_is_left_out_and_named(folder: Path) -> None:
    for path in run_files(folder, "least-loaded"):
        path.unlink()
    results = read_results(folder)
    assert results.labels == ("round-robin",)
    assert results.missing.endswith("has not finished, and of least-loaded no run is there")


def test_without_a_seed_that_all_have_finished_there_is_nothing_to_show(folder: Path) -> None:
    for path in (*run_files(folder, "least-loaded")[:2], *run_files(folder, "round-robin")[2:]):
        path.unlink()
    with pytest.raises(ValueError, match="holds no seed that every policy has finished; let the evaluation go on"):
        read_results(folder)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no results folder: it has no experiment\.json"):
        read_results(tmp_path)
    with pytest.raises(ValueError, match="is no results folder"):
        read_results(tmp_path / "not there")


def test_another_schema_is_refused(folder: Path) -> None:
    note = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps(note | {"schema_version": 1}))
    with pytest.raises(ValueError, match=f"has results schema 1; this version reads {RESULTS_SCHEMA}: evaluate again"):
        read_results(folder)


@pytest.mark.parametrize("content", ["{", 100_000 * "["])
@pytest.mark.parametrize("name", ["experiment.json", ASKED])
def test_a_damaged_note_is_named(name: str, content: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} is unreadable; evaluate again into a new folder"):
        read_results(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("experiment.json", {"description": {}}), (ASKED, {"seeds": "many"}), (ASKED, {"schema_version": 1})],
)
def test_a_note_of_another_shape_is_refused(name: str, content: dict[str, object], folder: Path) -> None:
    note = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(note | content))
    with pytest.raises(ValueError, match="holds no readable description of its runs; evaluate again"):
        read_results(folder)


def test_a_folder_without_a_choice_is_refused(folder: Path) -> None:
    (folder / ASKED).unlink()
    with pytest.raises(ValueError, match=f"is no results folder: it has no {ASKED}"):
        read_results(folder)
