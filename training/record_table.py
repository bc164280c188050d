"""Records as a table: what happened to each request, and what the policy knew of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..envs.records import RECORD, SCHEMA_VERSION
from ..envs.trace import SLO_CLASSES
from .metrics import Bools
from .runs import RESULTS_SCHEMA, Json

if TYPE_CHECKING:
    import pyarrow as pa

    from .scenario import Prepared

STATUS = ("finished", "failed", "rejected")
TIMES = tuple(name for name in RECORD.names or () if RECORD[name] == np.int64)
"""Columns in ps; null in the table where the record says −1 (not reached)."""


def record_table(
    result: Any, prepared: Prepared, met: Bools, *, label: str, policy: Json, seed: int
) -> pa.Table:
    """One row per request, warm-up included (`measured` tells).

    Columns: policy, policy_hash, seed, request, the trace's columns, the record's columns (times in ps with
    the ending `_ps`, null where not reached), met, measured, probability (of the policy's choice) and, where
    the result has them, the chosen pair's features as `feature_<name>`.

    Args:
        result: a simulation's result: `records`, and where known `probability` (N,) and `features`, a mapping
            of names to (N,) arrays.
        prepared: the trace and its window.
        met: (N,) whether each request met its targets.
        label: the policy as it was asked for.
        policy: its name, params and hash.
        seed: of the run.
    """
    import pyarrow as pa

    records, trace = result.records, prepared.trace
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
    columns["met"] = met
    columns["measured"] = prepared.window.holds(trace)
    probability = getattr(result, "probability", None)
    columns["probability"] = (
        pa.nulls(n, pa.float64()) if probability is None else np.asarray(probability, np.float64)
    )
    for name, values in (getattr(result, "features", None) or {}).items():
        columns[f"feature_{name}"] = np.asarray(values)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    versions = {"results_schema_version": str(RESULTS_SCHEMA), "records_schema_version": str(SCHEMA_VERSION)}
    return table.replace_schema_metadata(versions)


def _repeated(text: str, n: int) -> Any:
    return _named(np.zeros(n, np.int8), (text,))


def _named(index: Any, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(index, np.int8)), pa.array(names))
