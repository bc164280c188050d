"""The stored records of a run, read back into what `record_table` made them of."""

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

DUE = "due_ps"
"""Column of a live run alone: when the client was to send a request, beside when it did."""


@dataclass(frozen=True, eq=False)
class StoredRecords:
    """One run, warm-up included.

    Attributes:
        records: (N,) of dtype RECORD.
        trace: the requests.
        due: (N,) ps, when each request was to come: in a simulation it comes then, a client of engines may be late.
            What counts requests by time (windows, segments, bursts) goes by it; delays count from the arrival.
        decided: (N,) ps, the last decision about each request; −1 without one.
        met: (N,) whether both targets were met.
        measured: (N,) whether the request was due in the measurement window.
    """

    records: npt.NDArray[Any]
    trace: Trace
    due: Ints
    decided: Ints
    met: Bools
    measured: Bools


def read_records(path: Path) -> StoredRecords:
    """Reads `records/<policy>/<seed>.parquet` of a results folder.

    Raises:
        ValueError: the file is unreadable or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: f"{name}_ps" if name in TIMES else name for name in RECORD.names or ()}
    others = ("family", "slo", "prompt", "output", "ttft_target_ps", "tpot_target_ps", "decided_ps", "met", "measured")
    try:
        with path.open("rb") as file:  # By itself Arrow opens no path that is not Unicode text.
            own = [DUE] if DUE in pq.read_schema(file).names else []  # Of a live run.
            table = pq.read_table(file, columns=[*columns.values(), *others, *own])
        records = np.zeros(table.num_rows, RECORD)
        for name, column in columns.items():
            records[name] = _places(table, column, STATUS) if name == "status" else _numbers(table, column)
        families = tuple(table["family"].cast(pa.string()).unique().to_pylist())
        trace = Trace(
            arrival=records["arrival"],
            prompt=table["prompt"].to_numpy(),
            output=table["output"].to_numpy(),
            slo=_places(table, "slo", SLO_CLASSES),
            family=_places(table, "family", families),
            ttft_target=_numbers(table, "ttft_target_ps"),
            tpot_target=_numbers(table, "tpot_target_ps"),
            families=families,
        )
        due = _numbers(table, DUE) if own else records["arrival"].copy()
        flags = [table[name].to_numpy().astype(np.bool_) for name in ("met", "measured")]
    except (pa.ArrowException, OSError, KeyError, ValueError):
        raise ValueError(f"{path} holds no readable records; delete it and start again") from None
    return StoredRecords(records, trace, due, _numbers(table, "decided_ps"), *flags)


def _numbers(table: pa.Table, column: str) -> Ints:
    """A column of numbers; −1 for null."""
    numbers: Ints = table[column].fill_null(-1).to_numpy()
    return numbers


def _places(table: pa.Table, column: str, words: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """Index of each value of a column among these words; −1 for another one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.index_in(table[column].cast(pa.string()), value_set=pa.array(words))
    places: npt.NDArray[np.int8] = found.fill_null(-1).to_numpy().astype(np.int8)
    return places
