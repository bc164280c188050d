"""Training configurations: what is read, and the sentence for everything that is not allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from disaggroute.envs import catalog
from disaggroute.envs.setting import Setting
from disaggroute.training.learning import methods
from disaggroute.training.learning.config import TrainingConfig, changed

from .tasks import ES, NARROW, configured


def refused(text: str, **changes: Any) -> None:
    with pytest.raises(ValueError) as error:
        configured(**changes).check()
    assert text in str(error.value)


def scenario(**changes: Any) -> list[dict[str, Any]]:
    return [catalog.merge(NARROW, changes)]


MAIN = {"workload": "mixed-bursty", "duration_s": 20}


@pytest.mark.parametrize("name", catalog.names("training"))
def test_what_ships_is_sound(name: str) -> None:
    methods.load(name).check()


def test_a_policy_may_be_named_alone() -> None:
    assert configured().policy.name == "linear"


def test_an_unknown_field_is_refused_with_the_nearest_ones() -> None:
    refused("training: unknown field 'budgets'; nearest: budget", budgets=3)
    refused("training: unknown field of parameters 'populations'; nearest: population", parameters={"populations": 8})
    refused("unknown field of scenarios.0 'workloads'; nearest: workload", scenarios=scenario(workloads="chat"))
    refused("unknown field of validation 'seed'; nearest: seeds", validation={"seed": 1})


def test_an_unknown_method_is_refused() -> None:
    refused("training: method: unknown training method 'ess'; nearest: es", method="ess")
    with pytest.raises(ValueError, match="training: method is missing; it must be one of es"):
        methods.of({"name": "x"})


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ({"last": 10_000}, "seeds 0 to 10000 leave the tuning range; it is 0 to 9999"),
        ({"first": 30_000, "last": 30_001}, "seeds 30000 to 30001 leave the tuning range"),
        ({"first": 5, "last": 4}, "last is 4; it must be at least first, which is 5"),
    ],
)
def test_only_tuning_seeds_are_trained_on(seeds: dict[str, int], text: str) -> None:
    refused(text, seeds=seeds)


def test_only_validation_seeds_choose() -> None:
    refused("seeds 30000 to 30003 leave the validation range", validation={"first_seed": 30_000})


def test_more_traces_than_seeds_are_refused() -> None:
    refused("parameters.traces is 2; seeds has 1, so at most that", seeds={"first": 3, "last": 3})


def test_a_rate_is_given_once() -> None:
    refused("rate and saturation are both given", scenarios=scenario(saturation=True))
    refused("rate and saturation are both missing", scenarios=[{"workload": "chat"}])
    refused("factor is 2, but rate is 40; it multiplies a saturation rate", scenarios=scenario(factor=2))


def test_a_saturation_rate_is_the_stored_one_times_the_factor() -> None:
    stored = Setting.of(configured(scenarios=[{**MAIN, "rate": 1}]).scenarios[0].plain).stored_rate
    assert stored is not None
    config = configured(scenarios=[{**MAIN, "saturation": True, "factor": 0.5}])
    assert config.scenarios[0].plain.rate == stored * 0.5
    assert config.scenarios[0].label == "mixed-bursty-2p4d-a40-30k 0.5x"


def test_the_saturation_rate_of_another_cluster_may_be_named() -> None:
    slow = {**NARROW, "workload": "mixed-bursty", "saturation": "2p4d-a40-30k"}
    del slow["rate"]
    own = configured(scenarios=[{**MAIN, "saturation": True}]).scenarios[0].plain.rate
    assert configured(scenarios=[slow]).scenarios[0].plain.rate == own


def test_a_saturation_rate_that_is_not_stored_names_the_command_that_finds_it() -> None:
    unknown = {**NARROW, "saturation": True}
    del unknown["rate"]
    refused("no rate is stored for chat on 1p2d-one-narrow; `disaggroute saturate` finds it", scenarios=[unknown])


def test_a_recorded_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,10,10\n2023-11-16 18:00:01,10,10\n")
    refused("one recorded trace; training needs a workload", scenarios=[{"workload": str(file), "rate": 1}])


def test_two_scenarios_of_one_name_are_refused() -> None:
    refused("scenarios holds 'one narrow instance' twice; give each a name of its own", scenarios=[NARROW, NARROW])


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a b", "a/b"], "scenarios: the name 'a/b' has the folder of 'a b'; give it another one"),
        (["a", "A"], "scenarios: the name 'A' has the folder of 'a'; give it another one"),
        ([".."], "scenarios: the name '..' is no name of a folder; give it another one"),
        (["."], "scenarios: the name '.' is no name of a folder; give it another one"),
    ],
)
def test_scenarios_that_would_be_validated_in_one_folder_are_refused_before_the_training(
    names: list[str], text: str
) -> None:
    refused(text, scenarios=[{**NARROW, "name": name} for name in names])


def test_only_a_network_has_hidden_layers() -> None:
    refused("hidden is [8], but name is linear", policy={"name": "linear", "hidden": [8]})


def test_linear_starts_from_linear_alone() -> None:
    refused("policy.start is least-loaded; a linear policy", policy={"name": "linear", "start": "least-loaded"})


def test_an_unknown_start_or_baseline_is_refused() -> None:
    refused("policy.start: unknown policy 'lineal'", policy={"name": "linear", "start": "lineal"})
    refused(f"{ES['name']}: baseline: unknown policy 'least'", validation={"baselines": ["least"]})
    refused("unknown policy 'least'", scenarios=scenario(baseline="least"))


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("device is 'cuda', but torch finds no such device here; use cpu", device="cuda")


def test_es_computes_on_cpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    refused("device is 'cuda'; es runs episodes on CPUs alone, so use cpu", device="cuda")


def test_pairs_need_an_even_population() -> None:
    refused("population is 9; gradient takes pairs", parameters={"mode": "gradient", "population": 9})


def test_a_full_covariance_matrix_of_many_weights_is_refused() -> None:
    wide = {"name": "wide", "workload": "mixed-bursty", "rate": 5, "duration_s": 20, "topology": "2P2D"}
    refused("mode is cma, but", scenarios=[wide], parameters={"terms": "all"})


def test_a_cluster_without_a_choice_is_refused() -> None:
    lone = {"name": "lone", "workload": "chat", "rate": 5, "duration_s": 20, "topology": "1P1D"}
    refused("no cluster has a pool of two instances or more, so there is nothing to learn", scenarios=[lone])


def test_set_changes_a_field_wherever_it_is() -> None:
    data = changed(ES, ["budget=9", "parameters.step=0.5", "scenarios.0.rate=20", "policy={name: linear}"])
    config: Any = methods.of(data)
    assert (config.budget, config.parameters.step, config.scenarios[0].rate) == (9, 0.5, 20)
    assert ES["budget"] == 6 and ES["scenarios"][0]["rate"] == 40


def test_set_changes_a_field_of_a_policy_that_is_named_alone() -> None:
    assert ES["policy"] == "linear"
    assert methods.of(changed(ES, ["policy.start=linear"])).policy.start == "linear"
    assert methods.of(changed(ES, ["policy=linear", "policy.start=linear"])).policy.start == "linear"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("budget", "it must read like parameters.population=32"),
        ("=3", "it must read like parameters.population=32"),
        ("scenarios.1.rate=3", "'1' must be an index below 1"),
        ("budget.x=3", "there is no 'x' inside 6"),
        ("budget=[", "the value must be written as in YAML"),
    ],
)
def test_a_set_that_does_not_read_is_refused(change: str, text: str) -> None:
    with pytest.raises(ValueError, match="set is ") as error:
        changed(ES, [change])
    assert text in str(error.value)


def test_what_decides_the_weights_is_in_the_key_and_training_seeds_are_not() -> None:
    assert configured(training_seed=1).content() == configured().content()
    assert configured(budget=7).content() != configured().content()
    assert configured(policy={"name": "linear", "start": "linear"}).content() != configured().content()


def test_a_configuration_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(ES))
    assert isinstance(methods.load(file), TrainingConfig)
    with pytest.raises(ValueError, match="unknown training 'mine'"):
        methods.load("mine")
