"""Our own trace format: a Parquet or CSV file that gives a `Trace` back exactly.

Columns: `arrival_ps` (or `arrival_s`), `prompt_tokens`, `output_tokens`, and, if there, `slo` (tight or
loose), `family`, `ttft_target_ps`, `tpot_target_ps`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..trace import SLO_CLASSES, Trace
from .content import read_bytes
from .rows import Rows

OPTIONAL = ("slo", "family", "ttft_target_ps", "tpot_target_ps")

PARQUET_MAGIC = b"PAR1"


def write(trace: Trace, path: str | Path) -> Path:
    """Writes a trace as Parquet (.parquet) or CSV (.csv, .csv.gz); prefix ids are left out.

    Raises:
        ValueError: another ending.
    """
    import pandas as pd

    frame = pd.DataFrame(
        {
            "arrival_ps": trace.arrival,
            "prompt_tokens": trace.prompt,
            "output_tokens": trace.output,
            "slo": np.array(SLO_CLASSES)[trace.slo],
            "family": np.array(trace.families)[trace.family],
            "ttft_target_ps": trace.ttft_target,
            "tpot_target_ps": trace.tpot_target,
        }
    )
    target = Path(path)
    if target.name.endswith(".parquet"):
        frame.to_parquet(target, index=False)
    elif target.name.endswith((".csv", ".csv.gz")):
        frame.to_csv(target, index=False, lineterminator="\n")
    else:
        raise ValueError(
            f"{target}: ends in {target.suffix!r}; a trace is written as .parquet, .csv or .csv.gz"
        )
    return target


def is_parquet(path: str | Path) -> bool:
    """Whether the file begins as Parquet does."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(4) == PARQUET_MAGIC
    except OSError:
        return False


def parquet_rows(path: str | Path, required: tuple[str, ...]) -> Rows:
    """Rows of a Parquet file; row k counts as line k + 1.

    Raises:
        ValueError: a damaged file, a missing column, or no rows.
    """
    import io
    from array import array

    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(read_bytes(path)))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is a damaged Parquet file; write it again") from error
    for name in required:
        if name not in table.column_names:
            has = ", ".join(map(repr, table.column_names)) or "none"
            raise ValueError(f"{path}: column {name!r} is missing; there are {has}")
    if table.num_rows == 0:
        raise ValueError(f"{path}: has no rows; it must hold at least one request")
    wanted = [name for name in (*required, *OPTIONAL) if name in table.column_names]
    values = {name: table.column(name).to_pylist() for name in wanted}
    return Rows(str(path), values, array("q", range(1, table.num_rows + 1)), 0)


def parquet_columns(path: str | Path) -> list[str]:
    """Column names of a Parquet file.

    Raises:
        ValueError: a damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is a damaged Parquet file; write it again") from error
