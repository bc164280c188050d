"""A run of the suite: what runs where, the scores, what stands beside them, and what is written."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from disaggroute.training.suite.best_known import Best, BestKnown
from disaggroute.training.suite.board import Board, best_of
from disaggroute.training.suite.config import SuiteScenario
from disaggroute.training.suite.markdown import markdown, write_docs
from disaggroute.training.suite.plan import SuitePlan, Wish, plan_suite
from disaggroute.training.suite.roster import Roster
from disaggroute.training.suite.run import run_suite
from disaggroute.training.suite.tables import leaderboard_table, score_table
from disaggroute.training.suite.writing import write_board

from .conftest import Make

ASKS_ELSEWHERE = re.compile(r"https?://|@import|url\(|<script|<link|<iframe", re.IGNORECASE)


def known_of(*scenarios: SuiteScenario, **changes: object) -> BestKnown:
    """A file in which some policy is ten points above round robin."""
    entries = {
        each.name: Best(
            version=each.version,
            content=each.content,
            policy="somebody's",
            goodput=0.6,
            round_robin=0.5,
            heuristic=("card (tuned)", "card@mixed-bursty-a40"),
            command="",
        ).model_copy(update=changes)
        for each in scenarios
    }
    return BestKnown(scenarios=entries)


@pytest.fixture(scope="module")
def scenarios(make: Make) -> tuple[SuiteScenario, ...]:
    return make("usual"), make("wide", topology="3P6D", rate=20, beside="usual")


@pytest.fixture(scope="module")
def plan(lineup: Roster, scenarios: tuple[SuiteScenario, ...]) -> SuitePlan:
    return plan_suite(lineup, scenarios, known_of(scenarios[0]))


@pytest.fixture(scope="module")
def board(plan: SuitePlan, tmp_path_factory: pytest.TempPathFactory) -> Board:
    out = tmp_path_factory.mktemp("suite") / "out"
    return run_suite(plan, out=out, command="disaggroute experiment suite", workers=1)


def test_what_is_slow_runs_on_few_seeds_of_small_clusters_alone(plan: SuitePlan, board: Board) -> None:
    usual, wide = board.results
    assert usual.standings["slow"].seeds == 2 and usual.standings["least-loaded"].seeds == 4
    assert "slow" not in wide.standings
    slow = next(each for each in board.overalls if each.label == "slow")
    assert slow.lacking == ("wide",) and slow.fewer == ("usual",) and board.overalls[-1] == slow
    assert all(each.whole for each in board.overalls[:-1])
    assert plan.matrix.runs == 4 * 4 + 2 * 2 + 3 * 4  # The yardstick of the first scenario is the fourth policy.


def test_a_score_is_the_paired_gain_on_round_robin_over_that_of_the_best_known(board: Board) -> None:
    result = board.results[0]
    assert result.stored and result.best.gap == pytest.approx(0.1)
    runs = {each.label: result.row.evaluation.runs for each in board.overalls}
    assert runs
    goodput = {label: np.array(result.standings[label].goodput.values) for label in ("round-robin", "least-loaded")}
    expected = (goodput["least-loaded"] - goodput["round-robin"]) / 0.1
    standing = result.standings["least-loaded"]
    assert standing.score.values == pytest.approx(tuple(expected))
    assert standing.stratum.values == pytest.approx(expected)
    assert result.standings["round-robin"].score.mean == 0
    few = result.standings["slow"]
    assert few.difference.mean == pytest.approx(np.mean(few.goodput.values) - goodput["round-robin"][:2].mean())


def test_where_nobody_has_measured_the_best_of_the_run_is_one_and_that_is_marked(board: Board) -> None:
    wide = board.results[1]
    assert not wide.stored and wide.best.difference > 0.02
    assert max(standing.score.mean for standing in wide.standings.values()) == pytest.approx(1.0)
    assert "best known of this run" in board.mark


def test_hindsight_is_the_best_of_all_policies_on_each_trace(board: Board) -> None:
    for result in board.results:
        whole = [s.goodput.values for s in result.standings.values() if s.seeds == 4]
        assert result.hindsight == pytest.approx(np.max(whole, axis=0).mean())
        assert result.hindsight <= result.ceiling


def test_what_others_are_held_to_runs_but_does_not_stand_on_the_board(board: Board) -> None:
    usual = board.results[0]
    assert usual.heuristic == "card (tuned)" and usual.standings["card (tuned)"].text == "card@mixed-bursty-a40"
    assert board.results[1].heuristic == "marginal-cost (tuned)"
    assert "card (tuned)" not in [each.label for each in board.overalls]


def test_a_policy_with_fewer_seeds_has_no_place_and_that_is_said(
    make: Make, lineup: Roster, tmp_path: Path
) -> None:
    plan = plan_suite(lineup, [make("usual", duration_s=5)], BestKnown(), policies=["slow", "round-robin"])
    board = run_suite(plan, out=tmp_path / "out", workers=1)
    slow = board.overalls[-1]
    assert (slow.label, slow.lacking, slow.fewer, slow.ranked) == ("slow", (), ("usual",), False)
    assert dict(leaderboard_table(board).rows)["slow"][0] == "–"


def test_one_policy_is_scored_beside_its_yardsticks(
    lineup: Roster, scenarios: tuple[SuiteScenario, ...], tmp_path: Path
) -> None:
    plan = plan_suite(lineup, scenarios[:1], BestKnown(), policies=["least-ttft"], wish=Wish(seeds=1))
    board = run_suite(plan, out=tmp_path / "out", workers=1)
    assert [each.label for each in board.overalls] == ["least-ttft"]
    assert set(board.results[0].standings) == {"least-ttft", "round-robin", "marginal-cost (tuned)"}
    assert "other seeds or windows" in board.mark


def test_the_best_of_a_run_is_one_that_ran_on_all_seeds(board: Board) -> None:
    found = best_of(board.results[0], "the command")
    whole = {s.text: s.goodput.mean for s in board.results[0].standings.values() if s.seeds == 4}
    assert found.policy == max(whole, key=lambda text: whole[text]) and found.command == "the command"
    assert found.round_robin == pytest.approx(whole["round-robin"], abs=1e-6)
    assert (found.version, found.content) == (1, board.results[0].leg.scenario.content)


def test_tables_have_a_row_per_policy_and_files_a_row_per_scenario_and_policy(board: Board, tmp_path: Path) -> None:
    labels = ["round-robin", "least-loaded", "marginal-cost (tuned)", "slow"]
    assert sorted(label for label, _ in leaderboard_table(board).rows) == sorted(labels)
    table = score_table(board)
    assert table.columns == ("usual", "wide") and dict(table.rows)["slow"][1] == "–"
    files = {path.name: path for path in write_board(board, tmp_path)}
    rows = list(csv.DictReader(io.StringIO(files["suite.csv"].read_text())))
    assert {(row["scenario"], row["policy"]) for row in rows} >= {("usual", "slow"), ("wide", "least-loaded")}
    assert len(rows) == 5 + 3 and {row["version"] for row in rows} == {"1"}
    ranked = list(csv.DictReader(io.StringIO(files["leaderboard.csv"].read_text())))
    assert [row["policy"] for row in ranked] == [each.label for each in board.overalls]
    assert all(row["mark"] == board.mark for row in ranked)
    assert {row["policy"] for row in ranked if row["fewer_seeds"] == "True"} == {"slow"}
    assert dict(leaderboard_table(board).rows)["slow"][5] == "1 of 2, fewer seeds"
    page = files["suite.html"].read_text()
    assert not ASKS_ELSEWHERE.search(page) and "statistical precipice" in page
    assert [name for name in files if name.endswith(".png")] == ["leaderboard.png", "scores.png", "profiles.png"]


def test_the_same_board_gives_the_same_bytes_and_runs_nothing_again(
    board: Board, plan: SuitePlan, tmp_path: Path
) -> None:
    out = board.results[0].row.evaluation.folder.path.parent
    before = {path: path.stat().st_mtime_ns for path in out.rglob("runs/*/*.json")}
    again = run_suite(plan, out=out, command="disaggroute experiment suite", workers=1)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("runs/*/*.json")} == before
    one = [path.read_bytes() for path in write_board(board, tmp_path / "one")]
    assert [path.read_bytes() for path in write_board(again, tmp_path / "two")] == one


def test_what_was_lost_is_run_again_and_gives_the_same(board: Board, plan: SuitePlan, tmp_path: Path) -> None:
    first = run_suite(plan, out=tmp_path / "out", command="disaggroute experiment suite", workers=1)
    lost = sorted((tmp_path / "out").rglob("runs/*/10001.json"))
    assert len(lost) > 4
    for path in lost:
        path.unlink()
    again = run_suite(plan, out=tmp_path / "out", command="disaggroute experiment suite", workers=1)
    assert again.overalls == first.overalls and sorted((tmp_path / "out").rglob("runs/*/10001.json")) == lost


def test_without_figures_those_of_an_earlier_run_are_gone(board: Board, tmp_path: Path) -> None:
    write_board(board, tmp_path)
    write_board(board, tmp_path, figures=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["leaderboard.csv", "suite.csv"]


def test_the_documentation_gets_a_page_with_its_pictures_and_tables(board: Board, tmp_path: Path) -> None:
    written = write_docs(board, tmp_path)
    text = markdown(board)
    assert (tmp_path / "leaderboard.md").read_text() == text and "disaggroute experiment suite" in text
    targets = re.findall(r"\]\(([^)]+)\)", text)
    local = {str(path.relative_to(tmp_path)) for path in written}
    assert set(targets) - {"suite.md"} == local - {"leaderboard.md"}
    with pytest.raises(ValueError, match=r"docs is .*nowhere; it must be the folder of the documentation"):
        write_docs(board, tmp_path / "nowhere")


def test_results_of_another_version_of_a_scenario_are_refused(
    make: Make, lineup: Roster, board: Board
) -> None:
    out = board.results[0].row.evaluation.folder.path.parent
    for changes, words in (
        ({"version": 2}, "which holds results of version 1 of scenario usual, and this is version 2; name another"),
        ({"rate": 15}, "which holds results of another scenario usual of version 1; raise the version"),
    ):
        plan = plan_suite(lineup, [make("usual", **changes)], BestKnown())
        with pytest.raises(ValueError, match=words):
            run_suite(plan, out=out, workers=1)


def test_damaged_notes_and_other_folders_are_refused(plan: SuitePlan, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{")
    with pytest.raises(ValueError, match=r"suite\.json is unreadable; name another folder"):
        run_suite(plan, out=tmp_path, workers=1)
    (tmp_path / "suite.json").write_text('{"schema_version": 9, "scenarios": {}}')
    with pytest.raises(ValueError, match="has schema_version 9; this version reads 1"):
        run_suite(plan, out=tmp_path, workers=1)
    (tmp_path / "suite.json").rename(tmp_path / "something.txt")
    with pytest.raises(ValueError, match="which holds other files; name a new or empty folder"):
        run_suite(plan, out=tmp_path, workers=1)


def test_a_trace_that_is_not_there_is_said_and_marks_the_score(
    make: Make, lineup: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISAGGROUTE_DATA", raising=False)
    absent = make("recorded", workload="not-here.csv.gz", duration_s=None, rate=None, tuned_on="mixed-bursty-a40")
    plan = plan_suite(lineup, [make("usual"), absent], BestKnown())
    sentence = "scenario recorded is skipped: the trace not-here.csv.gz is not there; name its folder by --data or"
    assert plan.missing["recorded"].startswith(sentence)
    assert "without recorded" in Board(plan, (), (), "").mark
    with pytest.raises(ValueError, match="no scenario of the suite can be run; scenario recorded is skipped"):
        plan_suite(lineup, [absent], BestKnown())


def test_a_changed_scenario_without_a_new_version_is_refused(make: Make, lineup: Roster) -> None:
    known = known_of(make("usual"))
    with pytest.raises(ValueError, match=r"scenario usual is not what it was .* raise its version to 2"):
        plan_suite(lineup, [make("usual", rate=15)], known)
    assert plan_suite(lineup, [make("usual", rate=15, version=2)], known).legs[0].best is None


def test_a_claim_rests_on_all_held_out_seeds_or_is_refused(make: Make, lineup: Roster) -> None:
    long = make("usual", duration_s=1800)
    claim = plan_suite(lineup, [long], BestKnown(), wish=Wish(claim=True))
    assert claim.legs[0].seeds == range(30_000, 30_050) and all(part.claim for part in claim.matrix.parts)
    assert "slow" not in {entrant.label for entrant in claim.legs[0].entrants}
    with pytest.raises(ValueError, match="seeds is 4; a claim needs at least 50 held-out seeds"):
        plan_suite(lineup, [long], BestKnown(), wish=Wish(claim=True, seeds=4))
    with pytest.raises(ValueError, match="duration is 20 s; a claim needs at least 1800 simulated seconds"):
        plan_suite(lineup, [make("usual")], BestKnown(), wish=Wish(claim=True))


@pytest.mark.parametrize(
    ("policies", "wish", "words"),
    [
        (["carrd"], Wish(), "unknown policy 'carrd'; nearest: card"),
        (["size-interval(decode_cuts=[9])"], Wish(), "condition usual: .*cuts"),
        ((), Wish(seeds=0), "seeds is 0; it must be at least 1"),
        ((), Wish(duration_s=0), "duration_s is 0; it must be greater than 0"),
        ((), Wish(data=Path("nowhere")), "data is nowhere; it must be a folder of trace files"),
    ],
)
def test_bad_input_is_refused(make: Make, lineup: Roster, policies: list[str], wish: Wish, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_suite(lineup, [make("usual")], BestKnown(), policies=policies, wish=wish)


def test_a_scenario_whose_names_stand_for_nothing_is_refused(make: Make, lineup: Roster) -> None:
    with pytest.raises(ValueError, match="scenario usual: unknown cluster '2p4d-b40'"):
        plan_suite(lineup, [make("usual", cluster="2p4d-b40")], BestKnown())
