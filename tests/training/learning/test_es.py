"""Evolution strategies learn small tasks, meet the same traces, and resume to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.training.learning import es
from disaggroute.training.learning.experiment import train
from disaggroute.training.learning.run import TrainingRun
from disaggroute.training.trials import Job, run_trials
from disaggroute.training.workers import Workers

from .tasks import NARROW, configured, content

NETWORK = {"name": "network", "hidden": [6]}
SIZES: dict[str, Any] = {
    "name": "two sizes",
    "workload": "mixed-bursty",
    "rate": 11,
    "duration_s": 60,
    "warmup_s": 10,
}
"""Long prompts hold short ones up: the two prefill instances should share sizes out."""


def trained(path: Path, **changes: Any) -> tuple[list[dict[str, Any]], list[es.Candidate]]:
    """The learning curve, and the candidates."""
    config = configured(**changes)
    config.check()
    run = TrainingRun.open(path / "run", config.content(), 0)
    candidates = es.train(config, run)  # type: ignore[arg-type]
    return run.curve, candidates


@pytest.mark.parametrize(
    ("policy", "parameters", "budget"),
    [
        ("linear", {"mode": "cma", "population": 8}, 8),
        ("linear", {"mode": "separable", "population": 8}, 8),
        ("linear", {"mode": "gradient", "population": 12, "gradient": {"learning_rate": 0.15}}, 12),
        (NETWORK, {"mode": "gradient", "population": 12, "gradient": {"learning_rate": 0.15}}, 12),
    ],
    ids=["linear by cma", "linear by separable", "linear by gradient", "network by gradient"],
)
def test_it_learns_to_leave_a_narrow_instance_alone(
    tmp_path: Path, policy: Any, parameters: dict[str, Any], budget: int
) -> None:
    curve, candidates = trained(tmp_path, policy=policy, parameters=parameters, budget=budget)
    assert curve[0]["goodput/of the mean"] < 0.9
    assert curve[-1]["goodput/of the mean"] > 0.97
    config = configured().scenarios[0].plain
    (numbers,) = run_trials([Job(config, (50, 51, 52), _Made(candidates))], Workers(1))
    assert numbers[0].mean() > 0.97, "the last mean, on traces that it was not trained on"


class _Made:
    def __init__(self, candidates: list[es.Candidate]) -> None:
        self.candidates = candidates

    def __len__(self) -> int:
        return len(self.candidates)

    def part(self, first: int, last: int) -> _Made:
        return _Made(self.candidates[first:last])

    def made(self) -> Any:
        return (candidate.policy for candidate in self.candidates)


@pytest.mark.parametrize("policy", ["linear", NETWORK], ids=["linear", "network"])
def test_it_learns_to_tell_sizes_apart(tmp_path: Path, policy: Any) -> None:
    curve, _ = trained(
        tmp_path,
        policy=policy,
        scenarios=[SIZES],
        budget=15,
        parameters={"mode": "gradient", "population": 32, "traces": 4, "gradient": {"learning_rate": 0.15}},
    )
    gains = [row["gain/of the mean"] for row in curve]
    assert np.mean(gains[-4:]) > np.mean(gains[:4]) + 0.02


@pytest.mark.parametrize("mode", ["cma", "gradient"])
def test_interrupted_after_any_generation_it_ends_in_the_same_bytes(tmp_path: Path, mode: str) -> None:
    config = configured(parameters={"mode": mode}, budget=5)
    train(config, (0,), out=tmp_path / "whole", workers=1)
    whole = content(tmp_path / "whole")

    for last in range(config.budget):
        stopped_at: list[int] = []

        def tell(done: int, last: int = last, stopped_at: list[int] = stopped_at) -> None:
            if done == last:
                stopped_at.append(done)
                raise KeyboardInterrupt

        out = tmp_path / f"stopped after {last}"
        with pytest.raises(KeyboardInterrupt):
            train(config, (0,), out=out, workers=1, bar=_bar(tell))
        assert stopped_at == [last]
        train(config, (0,), out=out, workers=1)
        assert content(out) == whole


def _bar(tell: Any) -> Any:
    from contextlib import nullcontext

    return lambda *_: nullcontext(lambda done, total: tell(done))


def test_more_workers_change_no_byte(tmp_path: Path) -> None:
    config = configured(scenarios=[NARROW, {**NARROW, "name": "slower", "rate": 20}], budget=2)
    train(config, (0,), out=tmp_path / "one", workers=1)
    train(config, (0,), out=tmp_path / "two", workers=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_another_training_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(configured(budget=2), (seed,), out=tmp_path / str(seed), workers=1)
    trained_files = [(tmp_path / str(seed) / "trained.yaml").read_text().split("provenance")[0] for seed in (0, 1)]
    assert trained_files[0] != trained_files[1]


def test_all_candidates_of_a_generation_meet_the_same_traces_and_the_next_ones_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[tuple[int, ...], int]] = []

    def seen(jobs: list[Job], *rest: Any) -> Any:
        met.extend((tuple(job.seeds), len(job.policies)) for job in jobs)
        return run_trials(jobs, *rest)

    monkeypatch.setattr(es, "run_trials", seen)
    trained(tmp_path, seeds={"first": 100}, budget=2, parameters={"finalists": 1})
    baseline_mean_and_candidates = 1 + 1 + 8
    archive = 1 + 2 + 2  # The start, two means and two samples, which meet fresh traces.
    assert met == [
        ((100, 101), baseline_mean_and_candidates),
        ((102, 103), baseline_mean_and_candidates),
        ((104, 105, 106, 107), 1 + archive),
    ]


def test_the_last_mean_is_always_a_candidate_and_the_others_are_the_best_on_fresh_traces(tmp_path: Path) -> None:
    _, few = trained(tmp_path / "few", parameters={"finalists": 0})
    assert [candidate.label for candidate in few] == ["mean after 6 generations"]
    _, more = trained(tmp_path / "more", parameters={"finalists": 2})
    assert more[0].policy.hash == few[0].policy.hash
    assert len(more) == 3
    _, all_of_them = trained(tmp_path / "all", parameters={"finalists": 9})
    labels = {candidate.label for candidate in all_of_them}
    assert {"mean after 0 generations", "mean after 3 generations", "mean after 6 generations"} < labels
    assert len(labels) == 5


def test_no_scenario_dominates() -> None:
    tame = np.array([0.5, 0.5, 0.51, 0.52])[:, None, None]
    wild = np.array([0.5, 0.5, 0.9, 0.1])[:, None, None]
    values, gains = es._values([tame, wild], np.array([1.0, 1.0]), configured().parameters.guards)  # type: ignore[attr-defined]
    assert values.tolist() == pytest.approx([-0.25, 0.25, 0.0])
    assert gains.tolist() == pytest.approx([0, 0, 0.205, -0.19])
    values, _ = es._values([tame, wild], np.array([1.0, 0.0]), configured().parameters.guards)  # type: ignore[attr-defined]
    assert values.tolist() == pytest.approx([-0.5, 0.0, 0.5])


