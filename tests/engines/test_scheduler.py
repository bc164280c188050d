"""The simulator does what vLLM's own scheduler does: every time, every preemption, every block that is in use."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from disaggroute.envs.cluster import Cluster, EngineSpec
from disaggroute.envs.simulator.reference import ReferenceRun, run_reference
from disaggroute.envs.simulator.reference_instance import Instance, Phase, Request, Step

from ..differential.cases import Case
from ..differential.comparison import compare
from ..differential.scenarios import assign, engine, requests
from .scheduler_comparison import COLUMNS, POLLED, Answer, SchedulerProcess, first_difference, polled, vllm_case

pytestmark = pytest.mark.engines

BATCH = 100
QUICK = 3
LONG = 63


@dataclass(frozen=True)
class Settled:
    """A case, what the simulator makes of it (the compiled core and the reference alike), and what vLLM does."""

    case: Case
    run: ReferenceRun
    answer: Answer

    def difference(self, run: ReferenceRun | None = None) -> str | None:
        run = run or self.run
        views = polled(self.case.cluster, run.prefill_views, run.decode_views)
        return first_difference(run.records, views, self.answer)


Settle = Callable[[int], Settled]


@pytest.fixture(scope="session")
def vllm(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(python, model, tmp_path_factory.mktemp("scheduler") / "scheduler.log") as process:
        yield process


@pytest.fixture(scope="session")
def settle(vllm: SchedulerProcess) -> Settle:
    """Settles the case of a seed, once for all tests."""

    @cache
    def settled(seed: int) -> Settled:
        case = vllm_case(seed)
        return Settled(case, compare(case), vllm.answer(case))

    return settled


def seeds(batch: int) -> range:
    return range(batch * BATCH, (batch + 1) * BATCH)


@pytest.mark.parametrize("batch", range(QUICK))
def test_the_simulator_does_what_vllms_scheduler_does(batch: int, settle: Settle) -> None:
    for seed in seeds(batch):
        settled = settle(seed)
        difference = settled.difference()
        assert difference is None, f"{settled.case.label}: {difference}"


@pytest.mark.long
@pytest.mark.parametrize("batch", range(QUICK, LONG))
def test_the_simulator_does_what_vllms_scheduler_does_in_many_more_cases(batch: int, vllm: SchedulerProcess) -> None:
    for seed in seeds(batch):
        case = vllm_case(seed)
        difference = Settled(case, compare(case), vllm.answer(case)).difference()
        assert difference is None, f"{case.label}: {difference}"


def test_the_cases_are_rich_in_what_is_hard(settle: Settle, record_property: Callable[[str, object], None]) -> None:
    shares: Counter[str] = Counter()
    sample = range(QUICK * BATCH)
    for settled in map(settle, sample):
        cluster = settled.case.cluster
        facts = dataclasses.asdict(settled.run.facts) | {"aggregated": cluster.aggregated}
        facts |= {"several prefill": len(cluster.prefill) > 1, "several decode": len(cluster.decode) > 1}
        shares.update(name for name, count in facts.items() if count)
    lines = [f"{name:<20} {count / len(sample):6.1%}" for name, count in shares.most_common()]
    record_property(f"share of {len(sample)} cases put to vLLM's scheduler in which it happens", "\n".join(lines))
    often = ("ties", "preemptions", "blocked_reservation", "blocked_prefill", "chunked", "chunked_recomputes")
    for name in (*often, "mixed_steps", "running_limit", "egress_queueing", "aggregated", "several decode"):
        assert shares[name] >= 0.1 * len(sample), f"{name} occurs in {shares[name]} of {len(sample)} cases"
    assert shares["repeated_passes"] >= 0.02 * len(sample)


def of_all_engines(cluster: Cluster, change: Callable[[EngineSpec], EngineSpec]) -> Cluster:
    pools = {name: tuple(map(change, getattr(cluster, name))) for name in ("prefill", "decode", "mixed")}
    return replace(cluster, **pools)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, num_blocks=e.num_blocks + 1),
        lambda e: replace(e, max_num_batched_tokens=e.max_num_batched_tokens + 1),
        lambda e: replace(e, max_num_seqs=e.max_num_seqs + 1, batch=np.append(e.batch, e.batch[-1]))
        if e.max_num_seqs < e.max_num_batched_tokens
        else e,
        lambda e: replace(e, per_context=e.per_context + 1),
        lambda e: replace(e, egress_per_block=e.egress_per_block + 1),
    ],
    ids=["a KV block", "a token of budget", "a running request", "time for context", "time for a pull"],
)
def test_one_more_on_one_side_is_seen(change: Callable[[EngineSpec], EngineSpec], settle: Settle) -> None:
    for settled in map(settle, range(QUICK * BATCH)):
        cluster = of_all_engines(settled.case.cluster, change)
        if settled.difference(run_again(replace(settled.case, cluster=cluster))):
            return
    pytest.fail("no case shows it")


PREEMPT, RUN_RUNNING, JOIN_ARRIVED, SERVE_WAITING = (
    getattr(Instance, name) for name in ("_preempt", "_run_running", "_join_arrived", "_serve_waiting")
)


def preempted_last(instance: Instance, victim: Request) -> None:
    PREEMPT(instance, victim)
    instance.waiting.append(instance.waiting.pop(0))


def preempts_and_admits(instance: Instance, step: Step) -> bool:
    RUN_RUNNING(instance, step)
    return False


def joins_by_arrival(instance: Instance, step: Step) -> None:
    instance.reserved.sort(key=lambda request: request.transfer_end)
    JOIN_ARRIVED(instance, step)


def waiting_before_joins(instance: Instance, step: Step, now: int) -> list[Request]:
    served: list[Request] = SERVE_WAITING(instance, step, now)
    JOIN_ARRIVED(instance, step)
    return served


def room_for_a_token(request: Request) -> int:
    return request.prompt + request.generated + (request.phase is Phase.OFFERED)


@pytest.mark.parametrize(
    ("owner", "changes"),
    [
        (Instance, {"_preempt": preempted_last}),
        (Instance, {"_run_running": preempts_and_admits}),
        (Instance, {"_join_arrived": joins_by_arrival}),
        (Instance, {"_join_arrived": lambda *_: None, "_serve_waiting": waiting_before_joins}),
        (Request, {"known": property(room_for_a_token)}),
    ],
    ids=[
        "preempted requests wait behind the others",
        "a pass that preempted admits",
        "transferred requests join by arrival",
        "the waiting queue comes before those transferred",
        "a reservation leaves room for a token",
    ],
)
def test_another_rule_is_seen(owner: type, changes: dict[str, object], settle: Settle) -> None:
    with patch.multiple(owner, **changes):
        for settled in map(settle, range(QUICK * BATCH)):
            if settled.difference(run_again(settled.case)):
                return
    pytest.fail("no case shows it")


def run_again(case: Case) -> ReferenceRun:
    return run_reference(case.trace, case.cluster, assignment=case.assignment, predicted=case.predicted)


@pytest.mark.parametrize("column", COLUMNS)
def test_one_number_that_differs_is_named(column: str, settle: Settle) -> None:
    settled = settle(0)
    answer = deepcopy(settled.answer)
    answer["requests"][-1][column] += 1
    ours, last = settled.run.records[column][-1], len(settled.run.records) - 1
    text = f"request {last}: {column} is {ours}, not {ours + 1} as in vLLM (and 0 other requests differ)"
    assert replace(settled, answer=answer).difference() == text


@pytest.mark.parametrize("column", POLLED)
def test_one_polled_number_that_differs_is_named(column: str, settle: Settle) -> None:
    settled = settle(0)
    answer = deepcopy(settled.answer)
    ours = answer["polls"][1][0][POLLED.index(column)]
    answer["polls"][1][0][POLLED.index(column)] += 1
    text = f"arrival 1: {column} of instance 0 is {ours}, not {ours + 1} as in vLLM"
    assert replace(settled, answer=answer).difference() == text


def test_another_number_of_requests_is_a_difference(settle: Settle) -> None:
    settled = settle(0)
    answer = deepcopy(settled.answer)
    last, n = answer["requests"].pop(), len(settled.run.records)
    assert replace(settled, answer=answer).difference() == f"{n} records, not {n - 1} as in vLLM"
    answer["requests"] += [last, last]
    assert replace(settled, answer=answer).difference() == f"{n} records, not {n + 1} as in vLLM"


def test_a_request_that_vllm_never_ends_is_an_error_and_the_next_case_runs(vllm: SchedulerProcess) -> None:
    small = Cluster(mixed=(engine(num_blocks=2),))
    case = Case("too long", requests((0, 4, 1), (0, 9, 1)), small, assign((0, 0), (0, 0)), "bucket")
    with pytest.raises(RuntimeError, match=r"too long: .*vLLM is idle for good, and requests \[1\] have not ended"):
        vllm.answer(case)
    assert vllm.answer(vllm_case(0))["requests"]


def test_a_process_that_has_ended_says_what_it_wrote(model: Path, tmp_path: Path) -> None:
    with (
        SchedulerProcess(Path(sys.executable), model, tmp_path / "log") as process,
        pytest.raises(RuntimeError, match=r"the process of vLLM's scheduler has ended; it wrote (?s:.*)vllm"),
    ):
        process.answer(vllm_case(0))
