"""Running a matrix: one evaluation per condition, all on the same workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..evaluation import OnRun, evaluate
from ..executors.choice import executor_of
from ..executors.executor import Executor
from ..held_out import DEFAULT_LOG
from ..runs import ResultsFolder
from .cells import Matrix, Row, row_of
from .plan import Plan, with_rates


def run_matrix(
    plan: Plan,
    *,
    out: Path,
    command: str = "",
    workers: int | Executor | None = None,
    log: Path = DEFAULT_LOG,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Matrix:
    """Evaluates the policies in every condition, in the folders `<out>/<condition>`.

    Runs that the folders already hold are not repeated.

    Args:
        plan: what to run.
        out: results folder.
        command: the command line that makes it again, to be shown.
        workers: processes, None for one per core; or an executor, which is used and kept.
        log: where a claim is noted, once per condition.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: a folder of another matrix, or what `evaluate` says; names the condition.
        OSError: the folder cannot be written.
    """
    tell = say or (lambda _: None)
    ResultsFolder.open(out, plan.configuration(), {"name": plan.config.name, "notes": plan.config.notes})
    rows: list[Row] = []
    done = 0
    with executor_of(workers) as pool:
        plan = with_rates(plan, out, pool, tell)
        for part in plan.parts:

            def told(finished: int, _: int, before: int = done) -> None:
                if on_run:
                    on_run(before + finished, plan.runs)

            try:
                evaluation = evaluate(
                    part.scenario,
                    part.labels,
                    part.seeds,
                    out=out / part.name,
                    records="none",
                    workers=pool,
                    claim=part.claim,
                    log=log,
                    on_run=told,
                    say=tell,
                )
            except ValueError as error:
                raise ValueError(f"condition {part.name}: {error}") from error
            rows.append(row_of(part, evaluation, plan.reference))
            done += len(part.labels) * len(part.seeds)
    return Matrix(plan, tuple(rows), command)
