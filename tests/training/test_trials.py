"""Trials: every policy meets every trace, however the work is dealt."""

from __future__ import annotations

from typing import Any

import pytest

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.executors.process import ProcessExecutor
from disaggroute.training.trials import Job, Named, Place, Trial, run_trials

CHAT = Scenario.make(workload="chat", topology="1P2D", rate=60, duration_s=20, warmup_s=5)
SLOWER = CHAT.at_rate(20)


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
def test_every_policy_meets_every_trace_once_however_many_workers(workers: int) -> None:
    class Pool:
        count = workers

        def run(self, function: Any, trials: list[Trial]) -> Any:
            for t in reversed(trials):
                assert isinstance(t.policies, Named)
                values = [(t.seed + 100.0 * p["k"], t.scenario.rate) for p in t.policies.params]
                yield Place(t.job, t.seed, t.first), values

    policies = Named("length-threshold", [{"k": k} for k in range(7)])
    jobs = [Job(CHAT, (5, 6, 7), policies), Job(SLOWER, (7,), policies.part(0, 2))]
    first, second = run_trials(jobs, Pool())  # type: ignore[arg-type]
    assert first[..., 0].tolist() == [[seed + 100.0 * k for seed in (5, 6, 7)] for k in range(7)]
    assert second.tolist() == [[[7 + 100.0 * k, 20.0]] for k in range(2)]
    assert (first[..., 1] == 60).all()


def test_the_goodput_is_that_of_an_evaluation(tmp_path: Any) -> None:
    thresholds = (10, 500)
    policies = Named("length-threshold", [{"threshold": value} for value in thresholds])
    found = run_trials([Job(CHAT, (3, 4), policies)], ProcessExecutor(1))[0]
    texts = [f"length-threshold(threshold={value})" for value in thresholds]
    runs = evaluate(CHAT, texts, range(3, 5), out=tmp_path / "r", workers=1, records="none").runs
    assert found[..., 0].tolist() == [[run.summary.goodput for run in runs[text]] for text in texts]
