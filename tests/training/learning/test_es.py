"""Evolution strategies learn small tasks, meet the same traces, and resume to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disaggroute.training.executors.process import ProcessExecutor
from disaggroute.training.learning import es
from disaggroute.training.learning.run import TrainingRun
from disaggroute.training.trials import Job, run_trials

from .tasks import NARROW, configured

NETWORK = {"name": "network", "hidden": [6]}

def trained(
    path: Path, *, seed: int = 0, workers: ProcessExecutor | None = None, stop_after: int | None = None, **changes: Any
) -> tuple[list[dict[str, Any]], list[es.Candidate]]:
    """The learning curve, and the candidates."""

    def tell(done: int, total: int) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    config = configured(**changes)
    config.check()
    run = TrainingRun.open(path / "run", config.content(), seed, workers=workers, on_progress=tell)
    candidates = es.train(config, run)  # type: ignore[arg-type]
    run.finish(candidates)
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
    (numbers,) = run_trials([Job(config, (50, 51, 52), _Made(candidates))], ProcessExecutor(1))
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


@pytest.mark.parametrize("mode", ["cma", "separable", "gradient"])
def test_interrupted_after_any_generation_it_ends_in_the_same_bytes(tmp_path: Path, mode: str) -> None:
    changes: dict[str, Any] = {"parameters": {"mode": mode}, "budget": 5}
    expected = ended(tmp_path / "whole", trained(tmp_path / "whole", **changes))
    for last in range(5):
        out = tmp_path / f"stopped after {last}"
        with pytest.raises(KeyboardInterrupt):
            trained(out, stop_after=last, **changes)
        assert ended(out, trained(out, **changes)) == expected


def ended(path: Path, found: tuple[list[dict[str, Any]], list[es.Candidate]]) -> tuple[Any, ...]:
    """All that a run leaves."""
    curve, candidates = found
    last = sorted((path / "run" / "checkpoints").iterdir())[-1]
    return curve, [(c.label, c.policy.hash) for c in candidates], last.name, last.read_bytes()


def test_more_workers_change_no_byte(tmp_path: Path) -> None:
    changes = {"scenarios": [NARROW, {**NARROW, "name": "slower", "rate": 20}], "budget": 2}
    one = trained(tmp_path / "one", **changes)
    with ProcessExecutor(2) as workers:
        two = trained(tmp_path / "two", workers=workers, **changes)
    assert ended(tmp_path / "one", one) == ended(tmp_path / "two", two)


def test_another_training_seed_gives_other_weights(tmp_path: Path) -> None:
    one, other = (trained(tmp_path / str(seed), seed=seed, budget=2)[1][0].policy for seed in (0, 1))
    assert one.hash != other.hash


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


