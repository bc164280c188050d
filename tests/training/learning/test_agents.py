"""PPO, MaskablePPO, DQN and imitation learn a small task, give the same weights again, and resume to them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from disaggroute.envs.catalog import merge
from disaggroute.training.executors.process import ProcessExecutor
from disaggroute.training.learning import methods
from disaggroute.training.learning.checkpoint import write_checkpoint
from disaggroute.training.learning.run import Candidate, TrainingRun
from disaggroute.training.trials import Job, run_trials

from .tasks import NARROW

SHORT: dict[str, Any] = {**NARROW, "duration_s": 5, "warmup_s": 1}
FEW: dict[str, Any] = {"environments": 8, "group": 4, "batch": 256, "horizon_s": 2}

PARAMETERS: dict[str, dict[str, Any]] = {
    "ppo": {**FEW, "learning_rate": 0.02, "epochs": 6},
    "maskable-ppo": {**FEW, "learning_rate": 0.02, "epochs": 6},
    "dqn": {**FEW, "learning_rate": 0.01, "steps": 60, "least_exploration": 0.3},
    "imitation": {
        **FEW, "teacher": 'linear(decode={"index": 1})', "lessons": 2, "lesson_rate": 0.05, "learning_rate": 0.005
    },
}
METHODS = pytest.mark.parametrize("method", PARAMETERS)
NETWORK = {"name": "network", "hidden": [6]}


def configured(method: str, **changes: Any) -> Any:
    """A training of a few seconds."""
    data: dict[str, Any] = {
        "schema_version": 1,
        "name": "tiny",
        "method": method,
        "policy": "linear",
        "scenarios": [SHORT],
        "budget": 16_000,
        "checkpoint_every": 3_000,
        "parameters": PARAMETERS[method],
    }
    config = methods.of(merge(data, changes))
    config.check()
    return config


def trained(config: Any, folder: Path, seed: int = 0) -> tuple[list[Candidate], TrainingRun]:
    run = TrainingRun.open(folder, config.content(), seed)
    return methods.method(config.method).train(config, run), run


@METHODS
def test_scenarios_may_have_pools_of_other_sizes_and_updates_other_numbers_of_episodes(
    method: str, tmp_path: Path
) -> None:
    wide = {**SHORT, "name": "wide", "cluster": None, "topology": "2P3D", "profile": "a40-qwen2.5-3b"}
    scenarios = [SHORT, {**wide, "duration_s": 2.5}]
    few = {"most_decisions": 1_200} | ({"lessons": 1} if method == "imitation" else {})
    config = configured(method, policy=NETWORK, scenarios=scenarios, budget=2_000, parameters=few)
    assert [config.parameters.episodes(scenario) for scenario in config.scenarios] == [4, 8]
    candidates, run = trained(config, tmp_path)
    played = [{name for name in row if name.startswith("goodput")} for row in run.curve]
    assert {"goodput/wide"} in played and {f"goodput/{config.scenarios[0].label}"} in played, "each by its name"
    assert candidates[-1].policy.name == "network"


@METHODS
def test_weights_that_have_grown_beyond_all_bounds_end_a_training_in_a_sentence(
    method: str, tmp_path: Path
) -> None:
    short = {**SHORT, "duration_s": 1}
    wild = {"learning_rate": 1e30} | ({"lesson_rate": 1e30, "lessons": 1} if method == "imitation" else {})
    config = configured(method, scenarios=[short], budget=2_000, checkpoint_every=1, parameters=wild)
    with pytest.raises(ValueError, match=r"^after [\d,]+ decisions the weights .+; a lower learning rate may help"):
        trained(config, tmp_path)
    kept = [torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2])) for path in tmp_path.rglob("*.checkpoint")]
    assert all(weights.isfinite().all() for state in kept for weights in state["policy"].values())


def test_lookahead_can_teach(tmp_path: Path) -> None:
    short = {**SHORT, "duration_s": 1}
    teacher = {"teacher": "lookahead(budget=32, samples=1)", "lessons": 1, "environments": 4}
    config = configured("imitation", policy=NETWORK, scenarios=[short], budget=100, parameters=teacher)
    candidates, _ = trained(config, tmp_path)
    assert candidates[-1].policy.name == "network"


def test_an_update_has_about_as_many_decisions_as_were_asked_for() -> None:
    config = configured("ppo", parameters={"most_decisions": 1_000})
    (scenario,) = config.scenarios
    count = config.parameters.episodes(scenario)
    assert count % 4 == 0
    assert count * scenario.plain.rate * scenario.duration_s <= 1_000 < (count + 4) * 40 * 5
    assert config.parameters.model_copy(update={"most_decisions": 10**9}).episodes(scenario) == 8
    usual = scenario.model_copy(update={"duration_s": None})
    assert config.parameters.episodes(usual) == 4, "300 s unless said"


def hashes(candidates: list[Candidate]) -> list[tuple[str, str]]:
    return [(candidate.label, candidate.policy.hash) for candidate in candidates]


class _Entered:
    """Policies for `run_trials`."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates

    def __len__(self) -> int:
        return len(self.candidates)

    def part(self, first: int, last: int) -> _Entered:
        return _Entered(self.candidates[first:last])

    def made(self) -> Any:
        return (candidate.policy for candidate in self.candidates)


@pytest.mark.parametrize(
    ("method", "policy"),
    [("ppo", "linear"), ("ppo", NETWORK), ("maskable-ppo", "linear"), ("dqn", "linear"), ("imitation", NETWORK)],
    ids=["linear by ppo", "network by ppo", "linear by maskable-ppo", "linear by dqn", "network by imitation"],
)
def test_it_learns_to_leave_a_narrow_instance_alone(tmp_path: Path, method: str, policy: Any) -> None:
    config = configured(method, policy=policy)
    candidates, run = trained(config, tmp_path)
    if method != "imitation":
        assert run.curve[0]["goodput"] < 0.85, "at first it sends half of them there"
    (numbers,) = run_trials([Job(config.scenarios[0].plain, (50, 51), _Entered(candidates[-1:]))], ProcessExecutor(1))
    assert numbers[0].mean() > 0.97, "on traces that it was not trained on"


@METHODS
def test_a_run_that_goes_on_from_a_checkpoint_ends_in_the_same_weights(tmp_path: Path, method: str) -> None:
    config = configured(method, budget=5_000, checkpoint_every=2_000)
    whole, run = trained(config, tmp_path / "whole")
    halves = tmp_path / "halves"
    broken = TrainingRun.open(halves, config.content(), 0)
    stopped = _StopsAfter(broken, checkpoints=1)
    with pytest.raises(KeyboardInterrupt):
        methods.method(method).train(config, stopped)
    torch.rand(1)  # what others draw in between changes nothing
    again, resumed = trained(config, halves)
    assert hashes(again) == hashes(whole)
    assert resumed.curve == run.curve


class _StopsAfter:
    """A run that is interrupted when so many checkpoints are stored."""

    def __init__(self, run: TrainingRun, checkpoints: int) -> None:
        self._run, self._left = run, checkpoints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def checkpoint(self, step: int, content: bytes) -> None:
        self._run.checkpoint(step, content)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    config = configured("ppo", budget=3_000)
    first, _ = trained(config, tmp_path)
    again, run = trained(config, tmp_path)
    assert hashes(again) == hashes(first)
    assert len(run.curve) == len({row["step"] for row in run.curve})


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    config = configured("ppo", budget=3_000)
    assert hashes(trained(config, tmp_path / "0", 0)[0]) != hashes(trained(config, tmp_path / "1", 1)[0])


def test_masks_change_nothing_where_the_scorer_leaves_out_the_same(tmp_path: Path) -> None:
    plain, masked = (
        trained(configured(method, budget=3_000), tmp_path / method)[1].curve for method in ("ppo", "maskable-ppo")
    )
    assert plain[0]["goodput"] == masked[0]["goodput"]


def test_candidates_are_the_checkpoints_of_the_second_half(tmp_path: Path) -> None:
    config = configured("ppo", budget=7_000, checkpoint_every=1_500)
    candidates, run = trained(config, tmp_path)
    decisions = [int(candidate.label.removeprefix("decision ")) for candidate in candidates]
    assert len(decisions) > 1
    assert decisions == sorted(decisions)
    assert all(3_500 <= count <= run.curve[-1]["step"] for count in decisions)
    assert decisions[-1] == run.curve[-1]["step"]


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    small, large = (
        configured("ppo", budget=3_000, policy={"name": "network", "hidden": [units]}) for units in (4, 5)
    )
    _, run = trained(small, tmp_path / "small")
    latest = run.latest()
    assert latest is not None
    other = TrainingRun.open(tmp_path / "large", large.content(), 0)
    place = tmp_path / "large" / "checkpoints" / f"{latest[0]:012d}.checkpoint"
    write_checkpoint(place, latest[1], key=other.folder.key, step=latest[0])
    with pytest.raises(ValueError, match="the last checkpoint is of another network; train anew in another folder"):
        trained(large, tmp_path / "large")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parameters": {"environments": 10}}, "environments is 10; it must be a multiple of group, 4"),
        ({"parameters": {"clipping": 1}}, "clipping"),
        ({"scenarios": [{**SHORT, "cluster": None, "topology": "4M"}]}, "all instances are mixed"),
        ({"policy": {"name": "linear", "start": "least-loaded"}}, "a linear policy begins with a linear one"),
    ],
)
def test_what_it_cannot_train_is_refused_before_anything_begins(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        configured("ppo", **changes)


def test_an_unknown_teacher_is_refused() -> None:
    with pytest.raises(ValueError, match="least-laoded"):
        configured("imitation", parameters={"teacher": "least-laoded"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
@METHODS
def test_a_device_that_is_not_there_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="device is 'cuda', but torch finds no such device here; use cpu"):
        configured(method, device="cuda")
