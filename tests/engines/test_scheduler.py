"""The simulator does what vLLM's own scheduler does: every time, every preemption, every block that is in use."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..differential.comparison import compare
from .scheduler_comparison import SchedulerProcess, first_difference, polled, vllm_case

pytestmark = pytest.mark.engines


@pytest.fixture(scope="session")
def vllm(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(python, model, tmp_path_factory.mktemp("scheduler") / "scheduler.log") as process:
        yield process


def test_try(vllm):
    shares = Counter(); bad = []
    t_ours = t_theirs = 0
    import os
    n = int(os.environ.get("N", 60))
    for seed in range(n):
        case = vllm_case(seed)
        t=time.time()
        run = compare(case)
        t_ours += time.time()-t; t=time.time()
        try:
            answer = vllm.answer(case)
            d = first_difference(run.records, polled(case.cluster, run.prefill_views, run.decode_views), answer)
        except RuntimeError as e:
            d = str(e)
        t_theirs += time.time()-t
        if d: bad.append((seed, d))
        shares.update(k for k,v in dataclasses.asdict(run.facts).items() if v)
    print(n, t_ours, t_theirs, shares)
    for s, d in bad[:10]: print(s, d)
    print(len(bad))
