"""A run on a live cluster, as its results folder keeps it, and what of it can be replayed and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...envs.records import FAILED, FINISHED
from ..stored_records import StoredRecords, read_records

if TYPE_CHECKING:
    from ..results import Results
    from ..runs import ResultsFolder, Run

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LIVE_COLUMN = "lateness_ps"
"""Column that records of live runs have and those of simulated ones have not."""


@dataclass(frozen=True, eq=False)
class LiveRun:
    """One policy on one trace on a live cluster. Times are the engines', in ps.

    Attributes:
        label: the policy as it was asked for.
        policy_hash: of the policy.
        seed: of the trace.
        stored: records and trace.
        lateness: (N,) ps between the time at which a request was to be sent and the time at which it was.
        attempts: (N,) how often the router tried.
    """

    label: str
    policy_hash: str
    seed: int
    stored: StoredRecords
    lateness: Ints
    attempts: Ints

    @property
    def due(self) -> Ints:
        """(N,) when each request was to be sent: the same in every run on this trace, and what the window is about."""
        return self.stored.due

    @property
    def sent(self) -> Ints:
        """(N,) when each request was sent to its first engine, else when it was decided, else when it arrived."""
        records = self.stored.records
        start, decided = records["prefill_start"], self.stored.decided
        sent: Ints = np.where(start >= 0, start, np.where(decided >= 0, decided, records["arrival"]))
        return sent

    @property
    def output(self) -> Ints:
        """(N,) tokens with which each is replayed: a failed request has those that came, at least one; 0: left out.

        What failed before its prefill had ended is left out: nobody knows what it cost its engine.
        """
        records = self.stored.records
        began = (records["prefill_end"] >= 0) | (records["first_token"] >= 0)
        came = np.where(records["first_token"] >= 0, np.maximum(records["generated"], 1), 1)
        status, asked = records["status"], self.stored.trace.output.astype(np.int64)
        shortened = np.where((status == FAILED) & began, np.minimum(came, asked), 0)
        routed = (records["prefill"] >= 0) & (records["decode"] >= 0)
        output: Ints = np.where(routed, np.where(status == FINISHED, asked, shortened), 0).astype(np.int64)
        return output

    @property
    def comparable(self) -> Bools:
        """(N,) measured, finished in the first attempt, and its first token was seen."""
        records = self.stored.records
        clean = (records["status"] == FINISHED) & (self.attempts <= 1) & (records["first_token"] >= 0)
        comparable: Bools = clean & self.stored.measured
        return comparable


def read_live_runs(results: Results) -> tuple[list[LiveRun], list[str]]:
    """The runs of a results folder that have records, and in words those that have none.

    Raises:
        ValueError: the folder is of a simulated evaluation, has no records, or they are unreadable.
    """
    found: list[LiveRun] = []
    without: list[str] = []
    for label, runs in results.runs.items():
        for run in runs:
            if results.folder.records_path(run.policy, run.seed).exists():
                found.append(read_live_run(results.folder, label, run))
            else:
                without.append(f"{label}, seed {run.seed}: no records")
    if not found:
        raise ValueError(f"{results.folder.path} has no records; evaluate with --records all")
    return found, without


def read_live_run(folder: ResultsFolder, label: str, run: Run) -> LiveRun:
    """One run of a live results folder.

    Raises:
        ValueError: its records are unreadable, or of a simulated run.
    """
    path = folder.records_path(run.policy, run.seed)
    stored = read_records(path)
    lateness, attempts = _live_columns(path, folder.path, len(stored.records))
    return LiveRun(label, str(run.policy["hash"]), run.seed, stored, lateness, attempts)


def _live_columns(path: Path, folder: Path, n: int) -> tuple[Ints, Ints]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            names = set(pq.read_schema(file).names)
            if LIVE_COLUMN not in names:
                raise ValueError(
                    f"{folder} is a simulated evaluation: its records have no column {LIVE_COLUMN}; "
                    "give the folder of one on a live cluster"
                )
            table = pq.read_table(file, columns=[LIVE_COLUMN, *({"attempts"} & names)])
        lateness: Ints = table[LIVE_COLUMN].fill_null(0).to_numpy().astype(np.int64)
        attempts = np.ones(n, np.int64)
        if "attempts" in names:
            attempts = table["attempts"].fill_null(0).to_numpy().astype(np.int64)
    except (pa.ArrowException, OSError):
        raise ValueError(f"{path} holds no readable records; delete it and start again") from None
    return lateness, attempts
