"""`disaggroute timeline`: which run it takes, what it writes, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.runs import RESULTS_SCHEMA

from ..envs.viewer import show

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=10, duration_s=20, warmup_s=5)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "chat"
    evaluate(CHAT, ("round-robin", "marginal-cost(w_q=0.1)"), range(100, 102), out=folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mixed"
    scenario = CHAT.model_copy(update={"topology": "2M"})
    evaluate(scenario, ("least-loaded",), range(100, 102), out=folder, workers=1, records="all")
    return folder


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["timeline", *map(str, arguments)])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout, result.stderr


def refusal(*arguments: object) -> str:
    out, err = run(*arguments, code=2)
    assert out == "" and len(err.splitlines()) == 1
    return err.removeprefix("disaggroute: ").strip()


def test_a_stored_run_is_written_beside_its_results(results: Path) -> None:
    out, err = run(results, "--policy", "round-robin")
    path = Path(out.strip())
    assert path.parent.parent == results / "timelines" and path.name == "100.json.gz"
    shown = show(gzip.decompress(path.read_bytes()))
    assert shown.processes == ["router", "prefill 0", "decode 0", "decode 1"]
    requests = {one.request for one in shown.slices}
    assert requests == set(range(len(requests)))
    assert f"{len(shown.events):,} events" in err


def test_as_many_requests_are_shown_to_have_met_their_targets_as_the_summary_counts(results: Path) -> None:
    out, _ = run(results, "--policy", "round-robin")
    shown = show(gzip.decompress(Path(out.strip()).read_bytes()))
    arrived: dict[int, int] = {}
    for one in shown.slices:
        arrived[one.request] = min(one.start, arrived.get(one.request, one.start))
    met = {one.request for one in shown.slices if one.name == "prefill" and one.arguments["met"]}
    (path,) = results.glob("runs/round-robin-*/100.json")
    summary: dict[str, Any] = json.loads(path.read_text())["summary"]
    measured = {k for k, time in arrived.items() if time >= 5 * 10**12}  # after the warm-up
    assert (len(measured), len(measured & met)) == (summary["requests"], summary["met"])


def test_the_same_command_gives_the_same_bytes(results: Path, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        run(results, "--policy", "round-robin", "--out", tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_policy_may_be_named_in_another_way(results: Path, tmp_path: Path) -> None:
    for name, policy in (("a.json", "marginal-cost(w_q=0.1)"), ("b.json", "marginal-cost( w_q = 1e-1 )")):
        run(results, "--policy", policy, "--out", tmp_path / name)
    content = (tmp_path / "a.json").read_bytes()
    assert content == (tmp_path / "b.json").read_bytes()
    assert json.loads(content)["otherData"]["policy"] == "marginal-cost(w_q=0.1)"


def test_the_only_policy_need_not_be_named_and_another_seed_can_be(mixed: Path, tmp_path: Path) -> None:
    for seed in (100, 101):
        run(mixed, "--seed", seed, "--out", tmp_path / f"{seed}.json")
        assert json.loads((tmp_path / f"{seed}.json").read_bytes())["otherData"]["seed"] == seed
    shown = show((tmp_path / "100.json").read_bytes())
    assert shown.processes == ["router", "mixed 0", "mixed 1"]


@pytest.mark.parametrize(
    ("options", "low", "high"), [(["--from", 10, "--to", 12], 10, 12), (["--to", 5], 0, 5), (["--from", 20], 20, 1e9)]
)
def test_a_part_of_a_run_has_the_requests_that_were_in_flight_then(
    results: Path, tmp_path: Path, options: list[object], low: float, high: float
) -> None:
    run(results, "--policy", "round-robin", "--out", tmp_path / "whole.json")
    run(results, "--policy", "round-robin", "--out", tmp_path / "part.json", *options)
    whole, part = (show((tmp_path / f"{name}.json").read_bytes()) for name in ("whole", "part"))
    lives: dict[int, tuple[int, int]] = {}
    for one in whole.slices:
        first, last = lives.get(one.request, (one.start, one.end))
        lives[one.request] = (min(first, one.start), max(last, one.end))
    inside = {k for k, (first, last) in lives.items() if first <= high * 1e12 and last >= low * 1e12}
    assert {one.request for one in part.slices} == inside
    assert 0 < len(inside) < len(lives)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is no results folder: it has no experiment.json"


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps({"schema_version": RESULTS_SCHEMA}))
    assert refusal(tmp_path) == f"{tmp_path} holds no finished run"


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text('{"schema_version": 1}')
    sentence = f"{tmp_path} has results schema 1; this version reads {RESULTS_SCHEMA}: evaluate again"
    assert refusal(tmp_path) == sentence


def test_a_policy_must_be_chosen_among_several(results: Path) -> None:
    assert refusal(results).endswith("has runs of marginal-cost(w_q=0.1), round-robin")


def test_a_policy_without_runs_is_answered_with_those_that_have_some(results: Path) -> None:
    assert "unknown policy 'least-loaded'; allowed: marginal-cost(w_q=0.1), round-robin" in refusal(
        results, "--policy", "least-loaded"
    )


def test_a_seed_without_records_is_answered_with_those_that_have_some(results: Path) -> None:
    text = refusal(results, "--policy", "round-robin", "--seed", 101)
    assert text.endswith(
        "has no records of round-robin and seed 101; seeds with records: 100 (`evaluate --records all` keeps all)"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", "x.txt"], "out is x.txt; it must end in .json or .json.gz"),
        (["--from", "-1"], "from is -1 s; it must be between 0 and 100 days"),
        (["--to", "nan"], "to is nan s; it must be between 0 and 100 days"),
        (["--from", "9", "--to", "8"], "from is 9 s; it must lie before 8 s"),
    ],
)
def test_a_bad_option_is_refused(results: Path, options: list[str], sentence: str) -> None:
    assert refusal(results, "--policy", "round-robin", *options) == sentence


def test_a_start_after_the_end_of_the_run_is_refused(results: Path) -> None:
    text = refusal(results, "--policy", "round-robin", "--from", 1e6)
    assert text.startswith("from is 1e+06 s; it must lie before ") and text.endswith(" s, when the run ends")
