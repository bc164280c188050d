"""The stored records of a run, read back into the arrays that they came from (`record_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..envs.records import RECORD
from ..envs.trace import SLO_CLASSES, Trace
from .record_table import STATUS, TIMES

if TYPE_CHECKING:
    import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_TRACE = ("family", "slo", "prompt", "output", "ttft_target_ps", "tpot_target_ps")
_COLUMNS = {name: f"{name}_ps" if name in (*TIMES, "max_stall") else name for name in RECORD.names or ()}


@dataclass(frozen=True, eq=False)
class StoredRecords:
    """One run, request by request, warm-up included.

    Attributes:
        records: (N,) of dtype RECORD.
        trace: the requests.
        decided: (N,) time of the last decision, ps; −1 without one.
        met: (N,) whether both targets were met.
        measured: (N,) whether the request arrived in the measurement window.
    """

    records: npt.NDArray[Any]
    trace: Trace
    decided: Ints
    met: Bools
    measured: Bools


def read_records(path: Path) -> StoredRecords:
    """Reads what `record_table` made of a run.

    Args:
        path: `records/<policy>/<seed>.parquet` of a results folder.

    Raises:
        ValueError: the file is unreadable or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [*_COLUMNS.values(), *_TRACE, "decided_ps", "met", "measured"]
    try:
        table = pq.read_table(path, columns=wanted)
        return _records(table)
    except (pa.ArrowException, OSError, KeyError, ValueError):
        raise ValueError(f"{path} holds no readable records; delete it and start again") from None


def _records(table: pa.Table) -> StoredRecords:
    records = np.zeros(len(table), RECORD)
    for name, column in _COLUMNS.items():
        if name == "status":
            records[name], _ = _coded(table, column, STATUS)
        else:
            records[name] = _numbers(table, column)
    slo, _ = _coded(table, "slo", SLO_CLASSES)
    family, families = _coded(table, "family")
    trace = Trace(
        arrival=records["arrival"],
        prompt=_numbers(table, "prompt").astype(np.int32),
        output=_numbers(table, "output").astype(np.int32),
        slo=slo,
        family=family,
        ttft_target=_numbers(table, "ttft_target_ps"),
        tpot_target=_numbers(table, "tpot_target_ps"),
        families=families,
    )
    met, measured = (table[name].to_numpy().astype(np.bool_) for name in ("met", "measured"))
    return StoredRecords(records, trace, _numbers(table, "decided_ps"), met, measured)


def _numbers(table: pa.Table, column: str) -> Ints:
    """A column of whole numbers; −1 where the table holds null."""
    numbers: Ints = table[column].fill_null(-1).to_numpy().astype(np.int64, copy=False)
    return numbers


def _coded(
    table: pa.Table, column: str, names: tuple[str, ...] | None = None
) -> tuple[npt.NDArray[np.int8], tuple[str, ...]]:
    """Indices into names: these, or those of the column's own dictionary."""
    values = table[column].combine_chunks().dictionary_encode()
    own = tuple(values.dictionary.to_pylist())
    index = values.indices.to_numpy()
    if names is None:
        return index.astype(np.int8), own
    return np.array([names.index(name) for name in own], np.int8)[index], names
