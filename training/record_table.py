"""Records as a table: what happened to each request, and what the policy knew of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..envs.records import DECISION, RECORD, SCHEMA_VERSION
from ..envs.trace import SLO_CLASSES
from .metrics import Bools
from .runs import RESULTS_SCHEMA, Json

if TYPE_CHECKING:
    import pyarrow as pa

    from ..envs.backend import Outcome
    from ..envs.setting import Prepared
    from ..envs.simulator import SimulationResult

STATUS = ("finished", "failed", "rejected")
TIMES = tuple(name for name in RECORD.names or () if RECORD[name] == np.int64)
"""Columns in ps; null in the table where the record says −1 (not reached)."""

DECIDED = {"time": "decided_ps", "poll_time": "polled_ps", "probability": "probability"}
"""Columns of a decision that are not views of instances, and their names in the table."""


def record_table(
    result: SimulationResult | Outcome, prepared: Prepared, met: Bools, *, label: str, policy: Json, seed: int
) -> pa.Table:
    """One row per request, warm-up included (`measured` tells).

    Columns: policy, policy_hash, seed, request; the trace's; the record's, times in ps with the ending `_ps`
    and null where not reached; met, measured; and of the last decision about the request probability (of the
    pair that the policy chose), `decided_ps`, `polled_ps` and what the router saw of the chosen pair, as
    `seen_prefill_…` and `seen_decode_…` (columns PREFILL_VIEW and DECODE_VIEW), null without a decision. Then come the
    columns of the backend, times with the ending `_ps`, null where not reached.

    Args:
        result: of a run that logged its decisions.
        prepared: the trace and its window.
        met: (N,) whether each request met its targets.
        label: the policy as it was asked for.
        policy: its name, params and hash.
        seed: of the run.
    """
    import pyarrow as pa

    trace = prepared.trace
    n = len(trace)
    columns: dict[str, Any] = {
        "policy": _repeated(label, n),
        "policy_hash": _repeated(str(policy["hash"]), n),
        "seed": np.full(n, seed, np.int32),
        "request": np.arange(n, dtype=np.int32),
        "family": _named(trace.family, trace.families),
        "slo": _named(trace.slo, SLO_CLASSES),
        "prompt": trace.prompt,
        "output": trace.output,
        "ttft_target_ps": trace.ttft_target,
        "tpot_target_ps": trace.tpot_target,
    }
    columns |= _record_columns(result.records)
    columns |= {"met": met, "measured": prepared.window.holds(trace)}
    columns |= _decision_columns(result.decisions, n)
    columns |= {name: _own(name, values) for name, values in getattr(result, "columns", {}).items()}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    versions = {"results_schema_version": str(RESULTS_SCHEMA), "records_schema_version": str(SCHEMA_VERSION)}
    return table.replace_schema_metadata(versions)


def _record_columns(records: npt.NDArray[Any]) -> dict[str, Any]:
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in RECORD.names or ():
        values = np.ascontiguousarray(records[name])
        if name == "status":
            columns[name] = _named(values, STATUS)
        elif name == "max_stall":
            columns[f"{name}_ps"] = values
        elif name in TIMES:
            columns[f"{name}_ps"] = pa.array(values, mask=values < 0)
        else:
            columns[name] = values
    return columns


def _decision_columns(decisions: npt.NDArray[Any], n: int) -> dict[str, Any]:
    """What was logged of the last decision about each of the n requests."""
    import pyarrow as pa

    last = np.full(n, -1)
    last[decisions["request"]] = np.arange(len(decisions))
    none = last < 0
    columns: dict[str, Any] = {}
    for name in DECISION.names or ():
        if name in ("request", "predicted"):
            continue
        values = decisions[name][last] if len(decisions) else np.zeros(n, DECISION[name])
        columns[DECIDED.get(name, f"seen_{name}")] = pa.array(np.ascontiguousarray(values), mask=none)
    return columns


def _own(name: str, values: Any) -> Any:
    """A column of a backend alone: numbers, or a list of words with None for null."""
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return pa.array(values, mask=values < 0) if name.endswith("_ps") else pa.array(values)
    return pa.array(values, pa.string())


def _repeated(text: str, n: int) -> Any:
    return _named(np.zeros(n, np.int8), (text,))


def _named(index: Any, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(index, np.int8)), pa.array(names))
