"""Tuning: what is tried on which traces, stored, resumed, chosen, written and drawn."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import yaml

from disaggroute.envs.scenario import Scenario
from disaggroute.policies import parse
from disaggroute.training import trials, tuning
from disaggroute.training.comparison import Comparison
from disaggroute.training.evaluation import evaluate
from disaggroute.training.runs import RESULTS_SCHEMA
from disaggroute.training.table import table_console
from disaggroute.training.trials import run_trial
from disaggroute.training.tune_commands import _parameters
from disaggroute.training.tuning import Search, search
from disaggroute.training.tuning_choice import Choice, Finalist, choose
from disaggroute.training.tuning_log import Candidate, Generation, TuningLog, candidates
from disaggroute.training.tuning_picture import draw_search, search_figure
from disaggroute.training.tuning_plan import Plan

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=60, duration_s=20, warmup_s=5)
LOPSIDED = "length-threshold(threshold=8000)"
"""Everything to one of two decode instances, which cannot bear it."""


def plan(policy: str = LOPSIDED, scenario: Scenario = CHAT, evaluations: int = 12, **changes: Any) -> Plan:
    options = {"tuning_seeds": 3, "validation_seeds": 4, "validation_duration_s": 20.0} | changes
    return Plan(policy, scenario, evaluations=evaluations, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A search of two generations."""
    return search(plan(), out=tmp_path_factory.mktemp("tune") / "r", workers=1)


def test_every_restart_tries_its_budget(found: Search) -> None:
    assert [(c.restart, c.number) for c in found.tried] == [(r, k + 1) for r in range(3) for k in range(12)]


def test_the_restarts_try_different_candidates(found: Search) -> None:
    assert len({c.places for c in found.tried}) == 36


def test_all_candidates_of_a_generation_meet_the_same_traces_and_the_next_ones_others(found: Search) -> None:
    log = TuningLog(found.folder)
    first, second = log.read(0), log.read(1)
    assert first is not None and second is not None
    assert (first.seeds, second.seeds) == ((0, 1, 2), (3, 4, 5))
    assert found.seeds == (0, 1, 2, 3, 4, 5)
    assert len(first.goodput) == 3 and all(len(v) == 6 and len(v[0]) == 3 for v in first.goodput)


def test_the_goodput_is_that_of_an_evaluation(found: Search, tmp_path: Path) -> None:
    generation = TuningLog(found.folder).read(1)
    assert generation is not None
    threshold = found.plan.params(generation.places[2][4])["threshold"]
    policies = (f"length-threshold(threshold={threshold})", LOPSIDED)
    runs = evaluate(CHAT, policies, range(3, 6), out=tmp_path / "r", workers=1, records="none").runs
    assert [run.summary.goodput for run in runs[policies[0]]] == list(generation.goodput[2][4])
    assert [run.summary.goodput for run in runs[LOPSIDED]] == list(generation.default)


def test_more_workers_change_no_byte(found: Search, tmp_path: Path) -> None:
    search(plan(), out=tmp_path / "r", workers=2)
    assert content(tmp_path / "r").items() <= content(found.folder.path).items()


def test_a_search_that_broke_off_goes_on_where_it_stopped(
    found: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(plan(), out=tmp_path / "r", workers=1, on_evaluations=stop)
    assert len(list((tmp_path / "r" / "generations").iterdir())) == 1

    seeds = []
    monkeypatch.setattr(trials, "run_trial", lambda trial: (seeds.append(trial.seed), run_trial(trial))[1])
    search(plan(), out=tmp_path / "r", workers=1)
    assert seeds == [3, 4, 5]
    assert content(tmp_path / "r").items() <= content(found.folder.path).items()


def test_a_larger_budget_goes_on_from_a_smaller_one(found: Search, tmp_path: Path) -> None:
    search(plan(evaluations=6), out=tmp_path / "r", workers=1)
    search(plan(), out=tmp_path / "r", workers=1)
    assert content(tmp_path / "r").items() <= content(found.folder.path).items()


def test_progress_is_told_from_nothing_to_all(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    search(plan(), out=tmp_path / "r", workers=1, on_evaluations=lambda done, total: told.append((done, total)))
    assert told == [(0, 36), (18, 36), (36, 36)]


def test_the_table_has_one_row_per_candidate_with_its_parameters(found: Search) -> None:
    rows = list(csv.DictReader((found.folder.path / "evaluations.csv").open()))
    assert len(rows) == 36
    for row, candidate in zip(rows, found.tried, strict=True):
        assert (int(row["restart"]), int(row["evaluation"])) == (candidate.restart + 1, candidate.number)
        assert float(row["threshold"]) == found.plan.params(candidate.places)["threshold"]
        assert float(row["goodput"]) - float(row["default_goodput"]) == candidate.gain
        assert row["schema_version"] == str(RESULTS_SCHEMA)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1}, "another configuration (other seed)"),
        ({"population": 5}, "another configuration (other population)"),
        ({"policy": "length-threshold"}, "another configuration (other policy)"),
        ({"scenario": CHAT.at_rate(59)}, "another configuration (other rate)"),
    ],
)
def test_a_folder_of_another_configuration_is_refused(found: Search, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        search(plan(**changes), out=found.folder.path, workers=1)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text[:-9], "00001.json is not a readable generation; delete it and start again"),
        (lambda text: text.replace('"number": 1', '"number": 2'), "00001.json belongs to another tuning run"),
        (lambda text: with_other_places(text), "holds other candidates in generation 2 than the optimiser asks for"),
        (lambda text: with_fewer(text, "places", "goodput"), "holds other candidates in generation 2 than the"),
        (lambda text: with_fewer(text, "goodput"), "00001.json is not a readable generation; delete it"),
        (lambda text: with_fewer(text, "seeds"), "00001.json is not a readable generation; delete it"),
    ],
)
def test_a_damaged_log_is_answered_by_a_sentence(tmp_path: Path, change: Any, sentence: str) -> None:
    search(plan(), out=tmp_path / "r", workers=1)
    path = tmp_path / "r" / "generations" / "00001.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError) as error:
        search(plan(), out=tmp_path / "r", workers=1)
    assert sentence in str(error.value)


def with_other_places(text: str) -> str:
    data = json.loads(text)
    data["places"][0][0][0] += 0.01
    return json.dumps(data)


def with_fewer(text: str, *names: str) -> str:
    data = json.loads(text)
    for name in names:
        data[name].pop()
    return json.dumps(data)


def test_bad_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    for bad in (plan(scenario=CHAT.at_rate(0.0001)), plan(first_seed=30_000)):
        with pytest.raises(ValueError, match=r"no request arrives|held out"):
            search(bad, out=tmp_path / "r", workers=1)
    assert not (tmp_path / "r").exists()


def test_another_configuration_gets_another_default_folder() -> None:
    one, other = tuning.default_folder(plan()), tuning.default_folder(plan(seed=1))
    assert one != other and one.name.startswith("tune-length-threshold-chat-1p2d-a40-qwen2.5-3b-")


def test_gains_are_taken_over_the_default_on_the_same_traces() -> None:
    def generation(number: int, default: float, goodput: float) -> Generation:
        return Generation(
            schema_version=1,
            experiment="x",
            number=number,
            seeds=(0, 1),
            default=(default - 0.1, default + 0.1),
            places=(((0.5,),), ((0.6,),)),
            goodput=(((goodput, goodput),), ((goodput - 0.1, goodput - 0.1),)),
        )

    tried = candidates([generation(0, 0.5, 0.6), generation(1, 0.9, 0.9)])
    assert [(c.restart, c.generation, c.number) for c in tried] == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2)]
    assert [c.gain for c in tried] == pytest.approx([0.1, 0.0, 0.0, -0.1])


# --- the choice


def test_a_better_policy_than_the_default_is_found_chosen_and_written(found: Search) -> None:
    choice = choose(found, workers=1)
    default, tuned = choice.comparison.lines
    assert choice.improved and tuned.goodput.mean > default.goodput.mean + 0.2
    assert tuned.difference is not None and tuned.difference.low is not None and tuned.difference.low > 0
    policy = parse(f"length-threshold@{choice.file}")
    assert policy.hash == choice.chosen.policy.hash
    assert policy.params["threshold"] != 8_000


def test_the_file_says_how_it_was_made_and_what_it_gained(found: Search) -> None:
    choice = choose(found, workers=1)
    provenance = yaml.safe_load(choice.file.read_text())["provenance"]
    assert provenance["command"] == found.plan.command()
    assert provenance["scenario"].startswith("chat on 1p2d-a40-qwen2.5-3b at 60 requests/s")
    default, tuned = choice.comparison.lines
    assert provenance["validation"]["default_goodput"] == round(default.goodput.mean, 6)
    assert provenance["validation"]["goodput"] == round(tuned.goodput.mean, 6)
    assert set(provenance["validation"]["difference"]) == {"mean", "low", "high"}
    assert (provenance["search"]["seeds"], provenance["validation"]["seeds"]) == ("0 to 5", "10000 to 10003")


def test_the_default_the_means_and_the_best_of_each_restart_are_validated(found: Search) -> None:
    choice = choose(found, workers=1)
    rows = list(csv.DictReader((found.folder.path / "validation" / "summary.csv").open()))
    labels = {row["policy"] for row in rows}
    assert choice.validated == len(labels) == 1 + 3 * (1 + 3)
    assert LOPSIDED.replace("8000", "8000.0") in labels
    for restart in range(3):
        tried = [c for c in found.tried if c.restart == restart]
        for places in (found.means[restart][-1], max(tried, key=lambda c: c.gain).places):
            assert f"length-threshold(threshold={found.plan.params(places)['threshold']})" in labels
    assert {int(row["seed"]) for row in rows} == set(range(10_000, 10_004))


def test_the_best_on_validation_is_chosen_and_not_the_best_on_tuning(found: Search) -> None:
    choice = choose(found, workers=1)
    rows = list(csv.DictReader((found.folder.path / "validation" / "summary.csv").open()))
    sums: dict[str, float] = {}
    for row in rows:
        sums[row["policy"]] = sums.get(row["policy"], 0.0) + float(row["goodput"])
    assert choice.chosen.label == max(sums, key=lambda label: sums[label])


def test_the_default_stays_where_nothing_is_better(tmp_path: Path) -> None:
    idle = plan("marginal-cost(w_q=0.3)", CHAT.at_rate(1), evaluations=8)
    choice = choose(search(idle, out=tmp_path / "r", workers=1), workers=1)
    assert not choice.improved and len(choice.comparison.lines) == 1
    assert parse(f"marginal-cost@{choice.file}").hash == parse("marginal-cost(w_q=0.3)").hash
    assert yaml.safe_load(choice.file.read_text())["provenance"]["validation"]["difference"] is None


def test_the_table_of_parameters_names_the_term_of_each_weight(capsys: pytest.CaptureFixture[str]) -> None:
    linear = parse("linear(decode={\"pending\": 2})")
    default = Finalist(str(linear), linear, "the default")
    choice = Choice(default, default, Comparison((), "default", 1.0, 0, "none"), 1, Path("tuned.yaml"))
    table_console().print(_parameters(plan(str(linear)), choice))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["decode[pending]", "2", "2", "-3", "3"] in rows
    assert ["decode[prompt*index]", "none", "none", "-3", "3"] in rows


# --- the picture


def test_the_picture_has_a_line_per_restart_and_a_dotted_one_for_the_default(found: Search) -> None:
    (axes,) = search_figure(found).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["restart 1", "restart 2", "restart 3", "default: length-threshold"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    for restart in range(3):
        best = [found.default + c.gain for c in found.tried if c.restart == restart]
        drawn = lines[f"restart {restart + 1}"]
        assert drawn.get_xdata()[-1] == 12 and drawn.get_ydata()[-1] == max(best)  # type: ignore[index]
        assert sorted(drawn.get_ydata()) == list(drawn.get_ydata())  # type: ignore[arg-type]
    assert lines["default: length-threshold"].get_linestyle() == ":"
    assert set(lines["default: length-threshold"].get_ydata()) == {found.default}  # type: ignore[arg-type]
    assert "3 traces of 20 s" in axes.get_xlabel() and "share of requests" in axes.get_ylabel()


def test_the_same_search_gives_the_same_picture(found: Search, tmp_path: Path) -> None:
    pictures = [draw_search(found, tmp_path / name).read_bytes() for name in ("a.png", "b.png")]
    assert pictures[0] == pictures[1] and len(pictures[0]) > 10_000
    with matplotlib.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "figure.facecolor": "black"}):
        assert draw_search(found, tmp_path / "c.png").read_bytes() == pictures[0]


def test_a_picture_is_drawn_for_a_search_that_found_nothing(found: Search) -> None:
    flat = tuple(Candidate(c.restart, c.generation, c.number, c.places, 1.0, 1.0) for c in found.tried)
    (axes,) = search_figure(Search(found.plan, found.folder, flat, found.means, 1.0, found.seeds)).axes
    low, high = axes.get_ylim()
    assert low < 1.0 < high
