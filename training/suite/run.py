"""Running the suite: a matrix, its scores, and the refusal of another version's results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..evaluation import OnRun
from ..executors.executor import Executor
from ..held_out import DEFAULT_LOG
from ..matrix.run import run_matrix
from ..runs import ResultsFolder, write_atomically
from .board import Board, board_of
from .config import SuiteScenario
from .plan import NAME, SuitePlan

VERSIONS = "suite.json"
"""File in the results folder that says which version of each scenario it holds."""

SCHEMA_VERSION = 1


def run_suite(
    plan: SuitePlan,
    *,
    out: Path,
    command: str = "",
    workers: int | Executor | None = None,
    log: Path = DEFAULT_LOG,
    on_run: OnRun | None = None,
    say: Callable[[str], None] | None = None,
) -> Board:
    """Runs the policies in every scenario, in the folders `<out>/<scenario>`, and scores them.

    Runs that the folders already hold are not repeated.

    Args:
        plan: what to run.
        out: results folder.
        command: the command line that makes it again, to be shown.
        workers: processes, None for one per core; or an executor, which is used and kept.
        log: where a claim is noted, once per scenario.
        on_run: told after each run.
        say: told what takes its time beside the runs.

    Raises:
        ValueError: a folder with results of another version of a scenario, or what `run_matrix` says.
        OSError: the folder cannot be written.
    """
    versions = merged_versions(out / VERSIONS, [leg.scenario for leg in plan.legs])
    # Another folder's files are no place for ours.
    ResultsFolder.open(out, plan.matrix.configuration(), {"name": NAME, "notes": plan.roster.notes})
    content = {"schema_version": SCHEMA_VERSION, "scenarios": versions}
    write_atomically(out / VERSIONS, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    matrix = run_matrix(plan.matrix, out=out, command=command, workers=workers, log=log, on_run=on_run, say=say)
    return board_of(plan, matrix)


def merged_versions(path: Path, scenarios: Sequence[SuiteScenario]) -> dict[str, Any]:
    """Version and content of the scenarios that a results folder holds, with those that are to run.

    Args:
        path: the note of the folder.
        scenarios: that are to run.

    Raises:
        ValueError: the folder holds another version of one of them, or its note is unreadable.
    """
    known = _read(path)
    for scenario in scenarios:
        version, content = known.get(scenario.name, (scenario.version, scenario.content))
        if version != scenario.version:
            raise ValueError(
                f"out is {path.parent}, which holds results of version {version} of scenario {scenario.name}, and this "
                f"is version {scenario.version}; name another folder"
            )
        if content != scenario.content:
            raise ValueError(
                f"out is {path.parent}, which holds results of another scenario {scenario.name} of version {version}; "
                "raise the version of the one that changed, and name another folder"
            )
    return known | {scenario.name: [scenario.version, scenario.content] for scenario in scenarios}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        version, known = content["schema_version"], dict(content["scenarios"])
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in known.values()):
            raise ValueError
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is unreadable; name another folder") from None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path} has schema_version {version!r}; this version reads {SCHEMA_VERSION}")
    return known
