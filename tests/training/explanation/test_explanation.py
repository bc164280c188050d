"""Explanations: where requests go, what choices depend on, which rule they are like, and whom they serve better."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.envs import cluster_config
from disaggroute.envs.admission import Admission
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.policies import Policy, register, registry
from disaggroute.training.evaluation import evaluate
from disaggroute.training.explanation.assignment import Requests, shares, tenths
from disaggroute.training.explanation.explanation import Explanation, Portrait, explain, rules_beside
from disaggroute.training.explanation.figures import figures_of
from disaggroute.training.explanation.probing import WHOLE, inputs
from disaggroute.training.explanation.recording import Recording, RecordTask, record
from disaggroute.training.explanation.tables import effect_table, files, input_table
from disaggroute.training.explanation.writing import page, remarks, write_explanation

SCENARIO = Scenario.make(workload="mixed-bursty-a40", rate=14, duration_s=30, warmup_s=5)
SEEDS = range(10_000, 10_004)
BY_PROMPT = 'linear(prefill={"index": 0.3, "prompt*index": -1}, decode={"in_flight": 1, "tight*index": 2})'


@pytest.fixture(scope="module")
def found() -> Explanation:
    """A policy that sorts by prompt, against one that counts."""
    return explain(SCENARIO, BY_PROMPT, "least-loaded", SEEDS, samples=40, workers=1)


def recording(label: str, scenario: Scenario = SCENARIO, rules: tuple[str, ...] = ()) -> Recording:
    return record(RecordTask(scenario, label, rules, 10_000, 30))


def changed(portrait: Portrait, pool: str) -> dict[tuple[str, str], float]:
    assert portrait.inputs is not None
    return {(each.of, each.name): each.changed[pool] for each in portrait.inputs}


def test_the_runs_are_those_of_an_evaluation(found: Explanation, tmp_path: Path) -> None:
    alone = evaluate(SCENARIO, [BY_PROMPT, "least-loaded"], SEEDS, out=tmp_path, workers=1)
    everything = found.effects[0]
    for label, estimate in ((BY_PROMPT, everything.after), ("least-loaded", everything.before)):
        assert estimate.values == tuple(run.summary.goodput for run in alone.runs[label])
    by_name = {(each.kind, each.name): each for each in found.effects}
    tight = [
        a.summary.by_class["tight"].goodput - b.summary.by_class["tight"].goodput
        for a, b in zip(alone.runs[BY_PROMPT], alone.runs["least-loaded"], strict=True)
    ]
    assert by_name["class", "tight"].difference.values == pytest.approx(tight)
    assert set(by_name) >= {("class", "loose"), ("family", "chat"), ("family", "document"), ("family", "reasoning")}
    tail = {each.name: each for each in found.tails}
    assert tail["longest TTFT, s"].after == max(run.summary.max_delay for run in alone.runs[BY_PROMPT])


def test_shares_say_which_requests_go_where(found: Explanation) -> None:
    groups = {(each.kind, each.name): each for each in found.policy.assignment["prefill"]}
    tenth = [each for each in found.policy.assignment["prefill"] if each.kind == "prompt"]
    assert tenth[0].of_requests == pytest.approx([1, 0]) and tenth[-1].of_requests == pytest.approx([0, 1])
    for portrait in found.portraits:
        for pool, size in found.pools.items():
            for each in portrait.assignment[pool]:
                assert len(each.of_requests) == size
                assert each.of_requests.sum() == pytest.approx(1) and each.of_tokens.sum() == pytest.approx(1)
    everything = groups["all", "all"]
    assert sum(each.requests for each in tenth) == everything.requests
    assert everything.of_requests[0] > 0.5 > everything.of_tokens[0]  # Many short ones, few tokens.
    assert [each.name for each in found.against.assignment["prefill"] if each.kind == "prompt"] == [
        each.name for each in tenth
    ]


def test_requests_that_are_all_alike_are_one_group() -> None:
    same = np.full(6, 7, np.int64)
    zero = np.zeros(6, np.int64)
    requests = Requests(same, same, same, zero, zero, zero, np.array([0, 0, 1, 1, 1, 2]), ("one",))
    found = shares(requests, "decode", 3, tenths(requests))
    assert {(each.kind, each.name) for each in found} == {
        ("all", "all"),
        ("class", "tight"),
        ("prompt", "≤ 7"),
        ("predicted", "≤ 7"),
    }
    assert all(each.of_requests == pytest.approx([2 / 6, 3 / 6, 1 / 6]) for each in found)


def test_a_choice_depends_on_what_the_policy_reads_and_on_nothing_else(found: Explanation) -> None:
    prefill, decode = changed(found.policy, "prefill"), changed(found.policy, "decode")
    assert {name for name, share in prefill.items() if share > 0} == {("request", "prompt"), ("request", WHOLE)}
    expected = {("decode", "in_flight"), ("decode", WHOLE), ("request", "class and targets"), ("request", WHOLE)}
    assert {name for name, share in decode.items() if share > 0} == expected
    prefill, decode = changed(found.against, "prefill"), changed(found.against, "decode")
    assert {name for name, share in prefill.items() if share > 0} == {("prefill", "queued"), ("prefill", WHOLE)}
    assert {name for name, share in decode.items() if share > 0} == {("decode", "in_flight"), ("decode", WHOLE)}
    assert decode["decode", WHOLE] == decode["decode", "in_flight"]


def test_costs_are_taken_apart_where_a_policy_offers_them(found: Explanation) -> None:
    assert found.against.costs is None and found.policy.costs is not None
    costs = found.policy.costs
    assert costs.agreement == {"prefill": 1.0, "decode": 1.0}
    moved = {pool: {(f.of, f.name) for f in costs.features if f.changed[pool] > 0} for pool in ("prefill", "decode")}
    assert moved["prefill"] == {("request", "prompt")}
    assert moved["decode"] == {("request", "tight"), ("decode", "in_flight")}
    margins = {(f.of, f.name): f.margin for f in costs.features}
    assert margins["request", "prompt"]["prefill"] > 0 and margins["request", "prompt"]["decode"] == 0
    assert margins["request", "predicted"] == {"prefill": 0, "decode": 0}
    terms = {(t.pool, t.name): t for t in costs.terms}
    assert set(terms) == {
        ("prefill", "index"),
        ("prefill", "prompt*index"),
        ("decode", "in_flight"),
        ("decode", "tight*index"),
    }
    # With two instances the index is 0 or 1, so that each lies 0.15 from their mean.
    assert terms["prefill", "index"].spread == pytest.approx(0.15)
    assert terms["prefill", "prompt*index"].chosen < 0 and terms["decode", "tight*index"].chosen < 0


def test_agreement_is_counted_decision_by_decision(found: Explanation) -> None:
    known = {each.rule: each for each in found.against.agreement}
    assert "least-loaded" not in known and BY_PROMPT in known
    assert known["length-threshold"].shares["prefill"] == 1.0 > known["length-threshold"].shares["decode"]
    both = known["round-robin"]
    assert both.both <= min(both.shares.values()) and both.decisions == sum(
        each.requests for each in found.against.assignment["decode"][:1]
    )


def test_a_rule_agrees_with_its_own_run_even_if_it_remembers_or_draws() -> None:
    rules = ("length-threshold", "random", "round-robin", "power-of-two")
    for label in rules:
        run = recording(label, rules=rules)
        assert (run.rules[label] == run.chosen).all()
        assert run.probes is not None, label


def test_a_policy_is_not_compared_with_itself() -> None:
    setting = Setting.of(SCENARIO)
    rules = rules_beside("marginal-cost(w_q=0.05)", "least-loaded", setting)
    assert "marginal-cost" not in rules and rules[0] == "least-loaded" and rules.count("least-loaded") == 1
    assert "round-robin" in rules_beside("random", "card", setting)
    assert "random" not in rules_beside("random", "card", setting)


@pytest.mark.parametrize("policy", ["linear", "marginal-cost"])
def test_aggregated_clusters_have_one_pool(policy: str, tmp_path: Path) -> None:
    scenario = Scenario.make(workload="mixed-bursty-a40", topology="3M", rate=12, duration_s=20, warmup_s=2)
    found = explain(scenario, policy, "least-loaded", range(10_000, 10_001), samples=20, workers=1)
    assert set(found.pools) == {"mixed"} and set(found.policy.assignment) == {"mixed"}
    assert changed(found.against, "mixed")["mixed", "in_flight"] > 0
    assert changed(found.against, "mixed")["mixed", "queued"] == 0
    if policy == "linear":
        assert found.policy.costs is not None and found.policy.costs.agreement == {"mixed": 1.0}
    names = {path.name for path in write_explanation(found, tmp_path, "")}
    assert {"assignment-mixed.png", "explanation.html"} <= names and "assignment-decode.png" not in names


def test_several_routers_and_a_cluster_that_loses_an_instance_can_be_explained() -> None:
    events = [
        {"at_s": at + later, "instance": "prefill/1", "action": action}
        for at in range(6, 30, 2)
        for later, action in ((0, "kill"), (0.5, "return"))
    ]
    cluster = cluster_config.load("2p4d-a40", events=events, on_kill="reroute")
    scenario = Scenario.make(**(SCENARIO.model_dump() | {"cluster": cluster, "routers": 2}))
    run = recording("linear@mixed-bursty", scenario, ("least-loaded",))
    assert run.probes is not None and len(run.moments) == 30
    assert len(run.chosen) > run.summary.requests  # Those that were lost are decided about again.


def test_a_recorded_trace_has_intervals_from_its_own_segments(tmp_path: Path) -> None:
    rows = "".join(f"{0.2 * k:.1f},{200 + 37 * (k % 40)},{50 + k % 90}\n" for k in range(1_600))
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    scenario = Scenario.make(workload=str(path), topology="1P2D", warmup_s=0)
    found = explain(scenario, "marginal-cost", "round-robin", range(1), samples=10, workers=1)
    assert "blocks of 60 s" in found.interval
    assert [each.name for each in found.effects] == ["all", "tight", "loose"]
    assert all(each.difference.has_interval for each in found.effects)
    everything, tight, loose = found.effects
    parts = tight.requests * tight.difference.mean + loose.requests * loose.difference.mean
    assert parts == pytest.approx(everything.requests * everything.difference.mean)


class Moody(Policy):
    """Remembers how often it was asked, and cannot be copied."""

    name = "moody"

    def reset(self, seed: int) -> None:
        self.asked = 0

    def route(self, admission: Admission) -> tuple[int, int]:
        self.asked += 1
        return self.asked % len(admission.prefill), admission.prompt % len(admission.decode)

    def __deepcopy__(self, memo: dict[int, Any]) -> Moody:
        raise TypeError("no")


class Reader(Policy):
    """In Python: the decode instance by the prompt."""

    name = "reader"

    def route(self, admission: Admission) -> tuple[int, int]:
        return 0, admission.prompt % len(admission.decode)


@pytest.fixture
def foreign() -> Iterator[None]:
    """Policies of another package."""
    register(Moody)
    register(Reader)
    yield
    for name in ("moody", "reader"):
        registry._classes.pop(name)


def test_policies_of_other_packages_are_explained_as_far_as_they_let_themselves(foreign: None) -> None:
    found = explain(SCENARIO, "moody", "reader", range(10_000, 10_001), samples=20, workers=1)
    assert found.policy.inputs is None and found.against.inputs is not None
    assert changed(found.against, "decode")["request", "prompt"] > 0.5
    assert changed(found.against, "prefill")["request", "prompt"] == 0
    said = " ".join(remarks(found))
    assert "moody could not be asked about other inputs" in said and "reader offers no costs" in said
    assert input_table(found, "decode").rows[0][1][0] == "–"


def test_the_same_explanation_is_written_in_the_same_bytes(found: Explanation, tmp_path: Path) -> None:
    again = explain(SCENARIO, BY_PROMPT, "least-loaded", SEEDS, samples=40, workers=1)
    one, two = (
        {path.name: path.read_bytes() for path in write_explanation(each, tmp_path / str(k), "disaggroute explain")}
        for k, each in enumerate((found, again))
    )
    assert one == two
    assert set(one) == {
        *(f"{name}.csv" for name in ("effects", "tails", "assignment", "inputs", "features", "terms", "agreement")),
        *(f"{name}.png" for name in ("effects", "assignment-prefill", "assignment-decode", "inputs")),
        *("features.png", "terms.png", "agreement.png", "explanation.html"),
    }


def test_what_an_earlier_explanation_left_is_gone(found: Explanation, tmp_path: Path) -> None:
    write_explanation(found, tmp_path, "")
    (tmp_path / "experiment.json").write_text("{}")
    write_explanation(found, tmp_path, "", figures=False)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json"}


def test_the_page_holds_every_figure_and_table(found: Explanation) -> None:
    kinds = figures_of(found)
    text = page(found, kinds, {kind.name: b"png" for kind in kinds}, "disaggroute explain")
    for kind in kinds:
        assert f'id="{kind.name}"' in text and kind.title.replace("'", "&#39;") in text
    for name in ("effects", "tails", "assignment-decode-1", "inputs-prefill", "terms-decode", "agreement"):
        assert f'id="table-{name}"' in text


def test_tables_and_files_hold_the_same_numbers(found: Explanation) -> None:
    rows = files(found)
    effect = found.effects[0]
    assert rows["effects"][0]["difference"] == pytest.approx(effect.difference.mean, abs=1e-7)
    assert effect_table(found).rows[0][1][0] == f"{effect.requests:,}"
    shown = {(row["policy"], row["of"], row["name"], row["pool"]): row["changed"] for row in rows["inputs"]}
    prompt = changed(found.policy, "prefill")["request", "prompt"]
    assert shown[BY_PROMPT, "request", "prompt", "prefill"] == pytest.approx(prompt, abs=1e-7)
    assert len(rows["inputs"]) == 2 * 2 * len(inputs(aggregated=False))
    assert json.loads(json.dumps(rows)) == rows
