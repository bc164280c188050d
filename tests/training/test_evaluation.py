"""Evaluations: stored run by run, resumed, the same bytes whatever happened in between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import registry
from disaggroute.training import evaluation
from disaggroute.training.evaluation import (
    Evaluation,
    Records,
    check_policies,
    default_folder,
    evaluate,
    rotated,
    split_policies,
)
from disaggroute.training.runs import RESULTS_SCHEMA
from disaggroute.training.saturation import saturate

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=10, duration_s=20, warmup_s=5)
POLICIES = ("round-robin", "least-loaded")
SEEDS = range(100, 103)


def run(
    out: Path, records: Records = "first", policies: tuple[str, ...] = POLICIES, seeds: range = SEEDS
) -> Evaluation:
    return evaluate(CHAT, policies, seeds, out=out, workers=1, records=records)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_policy_runs_on_the_trace_of_every_seed(tmp_path: Path) -> None:
    got = run(tmp_path / "r")
    assert [[r.seed for r in got.runs[label]] for label in POLICIES] == [list(SEEDS)] * 2
    for one, other in zip(*got.runs.values(), strict=True):
        assert one.summary.requests == other.summary.requests
        assert one.summary.ceiling == other.summary.ceiling


def test_twice_the_same_evaluation_gives_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "a", records="all")
    run(tmp_path / "b", records="all")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_workers_change_no_byte(tmp_path: Path) -> None:
    run(tmp_path / "a")
    evaluate(CHAT, POLICIES, SEEDS, out=tmp_path / "b", workers=2)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_an_evaluation_that_broke_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole")
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        told.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(CHAT, POLICIES, SEEDS, out=tmp_path / "broken", workers=1, on_run=stop)
    assert len(list((tmp_path / "broken" / "runs").rglob("*.json"))) == 3

    done: list[str] = []
    original = evaluation.run_task
    monkeypatch.setattr(evaluation, "run_task", lambda task: (done.append(task.label), original(task))[1])
    run(tmp_path / "broken")
    assert len(done) == 3
    assert content(tmp_path / "whole") == content(tmp_path / "broken")


def test_more_seeds_and_policies_are_added_to_what_is_there(tmp_path: Path) -> None:
    run(tmp_path / "grown", policies=("round-robin",), seeds=range(100, 102))
    run(tmp_path / "grown")
    run(tmp_path / "whole")
    assert content(tmp_path / "grown") == content(tmp_path / "whole")


def test_only_the_first_seeds_records_are_kept_unless_all_are_wanted(tmp_path: Path) -> None:
    def kept(name: Records) -> int:
        run(tmp_path / name, records=name)
        return len(list((tmp_path / name).glob("records/*/*.parquet")))

    assert (kept("none"), kept("first"), kept("all")) == (0, 2, 6)
    assert not (tmp_path / "none" / "records.parquet").exists()


def test_records_say_who_decided_what_and_whether_it_counts(tmp_path: Path) -> None:
    got = run(tmp_path / "r")
    table = pq.read_table(tmp_path / "r" / "records.parquet").to_pandas()
    assert set(table["policy"]) == set(POLICIES) and set(table["seed"]) == {100}
    for label in POLICIES:
        mine = table[table["policy"] == label]
        summary = got.runs[label][0].summary
        assert set(mine["policy_hash"]) == {registry.parse(label).hash}
        assert (mine["measured"].sum(), (mine["measured"] & mine["met"]).sum()) == (
            summary.requests,
            summary.met,
        )
        assert (mine["arrival_ps"].to_numpy()[1:] >= mine["arrival_ps"].to_numpy()[:-1]).all()
    assert (table["predicted"] >= 1).all() and (table["first_token_ps"] > table["arrival_ps"]).all()
    assert (table["probability"] == 1.0).all()
    assert (table["decided_ps"] == table["arrival_ps"]).all() and (
        table["polled_ps"] <= table["decided_ps"]
    ).all()
    assert {"seen_prefill_queued", "seen_decode_in_flight", "seen_decode_used"} <= set(table.columns)
    metadata = pq.read_schema(tmp_path / "r" / "records.parquet").metadata
    assert metadata[b"results_schema_version"] == str(RESULTS_SCHEMA).encode()


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "r")
    with pytest.raises(ValueError, match=r"another configuration \(other rate\)"):
        evaluate(CHAT.at_rate(11), POLICIES, SEEDS, out=tmp_path / "r", workers=1)


def test_another_configuration_gets_another_default_folder() -> None:
    one, other = default_folder(Setting.of(CHAT)), default_folder(Setting.of(CHAT.at_rate(11)))
    assert one != other and one.parent == Path("results") and one.name.startswith("chat-1p2d-a40-qwen2.5-3b-")


def test_bad_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    for scenario in (CHAT.at_rate(0.0001), Scenario.make(workload="chat")):
        with pytest.raises(ValueError, match=r"no request arrives|rate is missing"):
            evaluate(scenario, POLICIES, SEEDS, out=tmp_path / "r", workers=1)
    assert not (tmp_path / "r").exists()


def test_a_policy_file_that_changes_during_an_evaluation_is_noticed(tmp_path: Path) -> None:
    folder = run(tmp_path / "r").folder
    task = evaluation.Task(CHAT, "round-robin", "another hash", 100, folder, False)
    with pytest.raises(ValueError, match="round-robin: the policy file changed during the evaluation; start it again"):
        evaluation.run_task(task)


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "policies is empty"),
        (["round-robbin"], "unknown policy 'round-robbin'; nearest: round-robin"),
        (["round-robin", "least-loaded", "round-robin"], "policies names round-robin twice"),
    ],
)
def test_bad_lists_of_policies_are_refused(policies: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_policies(policies)


def test_commas_inside_brackets_do_not_separate_policies() -> None:
    assert split_policies("round-robin, marginal-cost(w_q=0.1, w_b=2),least-loaded") == [
        "round-robin",
        "marginal-cost(w_q=0.1, w_b=2)",
        "least-loaded",
    ]


def test_commas_inside_quoted_file_names_do_not_separate_policies() -> None:
    assert split_policies('round-robin,marginal-cost@"a, b.yaml",marginal-cost@my file.yaml(w_q=1, w_b=2)') == [
        "round-robin",
        'marginal-cost@"a, b.yaml"',
        "marginal-cost@my file.yaml(w_q=1, w_b=2)",
    ]


def test_an_unknown_choice_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="records is 'some'; allowed are first, all, none"):
        run(tmp_path / "r", records="some")  # type: ignore[arg-type]


def test_held_out_seeds_need_a_claim_and_a_claim_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = range(30_000, 30_002)
    with pytest.raises(ValueError, match="seed 30000 is held out"):
        run(tmp_path / "r", seeds=held_out)
    monkeypatch.setattr("disaggroute.training.seeds.CLAIM_SEEDS", 2)
    monkeypatch.setattr("disaggroute.training.seeds.CLAIM_DURATION_S", 20.0)
    log = tmp_path / "held-out.log"
    for _ in range(2):
        evaluate(CHAT, POLICIES, held_out, out=tmp_path / "r", workers=1, claim=True, log=log)
    (line,) = [json.loads(text) for text in log.read_text().splitlines()]
    assert line["seeds"] == [30_000, 30_001] and line["policies"] == list(POLICIES)


def test_a_small_claim_is_refused_before_it_is_logged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a claim needs at least 50 held-out seeds"):
        evaluate(CHAT, POLICIES, range(30_000, 30_003), out=tmp_path / "r", claim=True, log=tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_the_default_folder_stays_below_results_whatever_the_cluster_is_called() -> None:
    setting = Setting.of(Scenario.make(rate=1.0))
    strange = replace(setting, cluster=replace(setting.cluster, name="x/../../y"))
    folder = default_folder(strange)
    assert folder.parent == Path("results")
    assert folder.name.startswith("mixed-bursty-a40-x-..-..-y-")


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("size-interval(decode_cuts=[9, 99, 999])", "decode_cuts holds 3 numbers; a pool of 2 needs 1"),
        ("size-interval(prefill_cuts=[9])", "prefill_cuts holds 1 numbers; a pool of 1 needs 0"),
    ],
)
def test_parameters_for_other_pools_are_refused_before_anything_runs(
    policy: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path / "r", policies=("round-robin", policy))
    assert not (tmp_path / "r").exists()
    with pytest.raises(ValueError, match=sentence):
        saturate(CHAT, policy=policy, workers=1)


def test_a_window_that_outlasts_a_recorded_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    rows = "".join(f"{k * 0.2},{50 + k % 90},{5 + k % 40}\n" for k in range(200))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    scenario = Scenario.make(workload=str(path), topology="1P2D", warmup_s=10, duration_s=40)
    with pytest.raises(ValueError, match=r"duration is 40 s, but recorded ends 29\.8 s after the warm-up"):
        evaluate(scenario, POLICIES, range(1), out=tmp_path / "r", workers=1)
    whole = Setting.of(Scenario.make(**(scenario.model_dump() | {"duration_s": None}))).duration_s
    scenario = Scenario.make(**(scenario.model_dump() | {"duration_s": whole}))
    assert evaluate(scenario, POLICIES, range(1), out=tmp_path / "r", workers=1).runs


def test_each_policy_comes_first_in_turn() -> None:
    orders = [rotated(("a", "b", "c"), turn) for turn in range(4)]
    assert [order[0] for order in orders] == ["a", "b", "c", "a"]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
