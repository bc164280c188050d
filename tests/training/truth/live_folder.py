"""Folders as a live evaluation leaves them, made of simulated ones: the truth about them is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from disaggroute.envs.scenario import Scenario
from disaggroute.training.evaluation import evaluate
from disaggroute.training.runs import parquet_bytes, write_atomically

MS = 10**9
"""Ps."""

SCENARIO = Scenario.make(workload="document", topology="2P2D", rate=8, duration_s=30, warmup_s=5)
POLICIES = ("round-robin", "least-loaded", "marginal-cost")
SEEDS = range(2, 4)

Change = Callable[[dict[str, np.ndarray]], None]
"""Alters the columns of a run in place; times in ps, −1 for null."""


@dataclass(frozen=True)
class Way:
    """What a client's way adds, ms.

    Attributes:
        before: from the client to the prefill engine.
        leg: to the answer of the prefill leg.
        after: from there to the first token, and to all later ones.
        late: how late the client sends.
    """

    before: float = 0.0
    leg: float = 0.0
    after: float = 0.0
    late: float = 0.0


def simulated(
    out: Path, scenario: Scenario = SCENARIO, policies: Sequence[str] = POLICIES, seeds: range = SEEDS
) -> Path:
    """A simulated evaluation with all its records."""
    evaluate(scenario, policies, seeds, out=out, records="all", workers=1)
    return out


def made_live(folder: Path, way: Way, change: Change | None = None) -> Path:
    """Turns a simulated evaluation into what a live one would have left, had its engines done just the same."""
    for path in (folder / "records").glob("*/*.parquet"):
        table = pq.read_table(path)
        names = [name for name in table.column_names if _number(table, name)]
        columns = {name: table[name].fill_null(-1).to_numpy().copy() for name in names}
        sent = columns["arrival_ps"].copy()
        columns["prefill_start_ps"] = sent
        columns["arrival_ps"] = sent - round(way.before * MS)
        columns["prefill_end_ps"] += round(way.leg * MS)
        for name in ("first_token_ps", "last_token_ps", "end_ps"):
            columns[name] += round((way.leg + way.after) * MS)
        for name in ("reserve_ps", "transfer_start_ps", "transfer_end_ps"):
            columns[name][:] = -1
        columns["lateness_ps"] = np.full(len(sent), round(way.late * MS))
        columns["attempts"] = np.ones(len(sent), np.int32)
        columns["_status"] = np.zeros(len(sent), np.int8)
        if change is not None:
            change(columns)
        columns["due_ps"] = columns["arrival_ps"] - columns["lateness_ps"]
        columns |= _met(columns)
        write_atomically(path, parquet_bytes(_table(table, columns)))
    return folder


def _number(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _met(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    first, last = columns["first_token_ps"], columns["last_token_ps"]
    gaps = columns["output"].astype(np.int64) - 1
    in_time = first - columns["arrival_ps"] <= columns["ttft_target_ps"]
    smooth = last - first <= gaps * columns["tpot_target_ps"]
    return {"met": (columns["_status"] == 0) & in_time & smooth}


def _table(table: pa.Table, columns: dict[str, np.ndarray]) -> pa.Table:
    words = ("finished", "failed", "rejected")
    made = {name: table[name] for name in table.column_names}
    for name, values in columns.items():
        if name != "_status":
            made[name] = pa.array(values, mask=values < 0) if name.endswith("_ps") else pa.array(values)
    made["status"] = pa.array([words[k] for k in columns["_status"]]).dictionary_encode()
    return pa.table(made).replace_schema_metadata(table.schema.metadata)
