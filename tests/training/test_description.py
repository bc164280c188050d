"""What an evaluation ran, in words, and the command that runs it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.envs import cluster_config
from disaggroute.envs.scenario import Scenario
from disaggroute.envs.setting import Setting
from disaggroute.training.description import OPTIONS, Description, command, describe, seeds_in_words

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{k * 0.5},{50 + k},{5 + k}\n" for k in range(200))


@pytest.mark.parametrize(
    ("seeds", "words"),
    [((7,), "seed 7"), (range(3, 10), "seeds 3 to 9"), ((3, 5, 9), "seeds 3, 5 and 9"), ((3, 4), "seeds 3 to 4")],
)
def test_seeds_are_told_in_few_words(seeds: tuple[int, ...], words: str) -> None:
    assert seeds_in_words(seeds) == words


def test_a_description_names_pools_in_their_order_with_their_profiles() -> None:
    told = describe(Setting.of(Scenario.make(workload="chat", topology="1P2D", rate=4)))
    assert list(told.pools.items()) == [("prefill", 1), ("decode", 2)]
    assert told.profiles == {"prefill": ("a40-qwen2.5-3b",), "decode": ("a40-qwen2.5-3b",)}
    assert (told.gpus, told.targets, told.single, told.aggregated) == (3, "fixed", False, False)
    assert told.title(range(5, 8)) == (
        "chat on 1p2d-a40-qwen2.5-3b: 4 requests/s, 300 s measured after 60 s, predictor bucket, seeds 5 to 7"
    )
    assert (told.window.start, told.window.end) == (60 * 10**12, 360 * 10**12)
    stored = told.model_validate(dict(sorted(told.model_dump(mode="json").items())))
    assert stored == told and list(stored.pools) == ["prefill", "decode"]


def test_pools_that_were_stored_in_another_order_come_back_in_ours() -> None:
    told = describe(Setting.of(Scenario.make(workload="chat", topology="1P2D", rate=4)))
    content = told.model_dump(mode="json") | {"pools": {"decode": 2, "prefill": 1}}
    assert list(told.model_validate(content).pools) == ["prefill", "decode"]


def test_one_recorded_trace_tells_its_own_rate_and_no_seed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.csv"
    path.write_text(TRACE)
    told = describe(Setting.of(Scenario.make(workload=str(path), topology="2M", warmup_s=5)))
    assert told.single and told.aggregated and told.rate == pytest.approx(2, rel=0.02)
    assert told.title([0]).endswith("one trace")
    assert told.targets == "of the file, else fixed"
    relative = Scenario.make(workload=str(path), topology="2M", warmup_s=5, targets="relative")
    assert describe(Setting.of(relative)).targets == "relative"


def understood(line: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `evaluate` is asked to run by a command line."""
    asked: dict[str, Any] = {}

    def note(scenario: Scenario, labels: tuple[str, ...], seeds: range, **more: Any) -> None:
        asked.update(scenario=scenario, labels=tuple(labels), seeds=seeds, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr("disaggroute.training.evaluation.evaluate", note)
    words = shlex.split(line)
    assert words[0] == "disaggroute"
    CliRunner().invoke(app, words[1:])
    return asked


@pytest.mark.parametrize(
    "values",
    [
        {"workload": "chat", "rate": 1 / 3},
        {"workload": "mixed-bursty-a40", "rate": 13.97, "cluster": "2p4d-a40", "duration_s": 0.1 + 0.2},
        {"workload": "chat", "rate": 1e-3, "topology": "2M", "warmup_s": 0.0, "predictor": "noisy(0.5)"},
        {"workload": "chat", "rate": 1e6, "targets": "relative", "profile": "a40-qwen2.5-3b", "constants_scale": 0.135},
        {"workload": "chat", "rate": 4.0, "routers": 4, "dealing": "random"},
    ],
)
def test_the_command_asks_for_the_same_evaluation(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario.make(**values)
    labels = ("round-robin", "marginal-cost(w_q=0.1, sample=2)")
    line = command(scenario, labels, range(7, 10), records="all")
    asked = understood(line, monkeypatch)
    assert (asked["scenario"], asked["labels"], asked["seeds"]) == (scenario, labels, range(7, 10))
    assert asked["records"] == "all" and not asked["claim"]


def test_the_command_can_name_every_field_of_a_scenario_that_has_an_option() -> None:
    assert {*OPTIONS, "workload", "observability"} == set(Scenario.model_fields)


def test_the_command_of_a_claim_is_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario.make(workload="chat", rate=4, duration_s=1800)
    line = command(scenario, ("round-robin",), range(30_000, 30_050), claim=True)
    assert understood(line, monkeypatch)["claim"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "2p4d-a40: 4 requests/s"),
        ({"routers": 2}, "2p4d-a40 behind 2 routers: 4 requests/s"),
        ({"routers": 2, "dealing": "random"}, "2p4d-a40 behind 2 routers (random dealing): 4 requests/s"),
    ],
)
def test_the_title_names_several_routers(values: dict[str, Any], words: str) -> None:
    scenario = Scenario.make(cluster="2p4d-a40", rate=4, **values)
    assert words in describe(Setting.of(scenario)).title([1])


def test_of_one_router_nothing_is_stored() -> None:
    settings = [Setting.of(Scenario.make(cluster="2p4d-a40", rate=4, routers=routers)) for routers in (1, 2)]
    stored = [describe(setting).model_dump(exclude_defaults=True) for setting in settings]
    assert "routers" not in stored[0] and stored[1]["routers"] == 2
    assert [Description.model_validate(words).routers for words in stored] == [1, 2]


def test_what_only_python_can_ask_for_has_no_command() -> None:
    cluster = cluster_config.from_topology("1P2D", "a40-qwen2.5-3b")
    for values in ({"cluster": cluster}, {"observability": "full"}):
        scenario = Scenario.make(workload="chat", rate=4, **values)
        assert command(scenario, ("random",), range(1)) == ""
        assert describe(Setting.of(scenario)).rate == 4


def test_with_full_observability_the_predictor_is_the_one_that_was_used() -> None:
    told = describe(Setting.of(Scenario.make(workload="chat", rate=4, observability="full")))
    assert (told.observability, told.predictor) == ("full", "oracle")


def test_the_command_of_a_trace_file_quotes_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a trace.csv"
    path.write_text(TRACE)
    scenario = Scenario.make(workload=str(path), format="disaggroute", topology="2M", warmup_s=5, tight_share=0.25)
    assert understood(command(scenario, ("random",), range(1)), monkeypatch)["scenario"] == scenario
