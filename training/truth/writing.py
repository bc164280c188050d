"""A comparison with the simulator, written into a folder: tables, requests, figures and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..csv_file import csv_bytes
from ..runs import RESULTS_SCHEMA, parquet_bytes, write_atomically
from .figures import FIGURES, draw_figures
from .page import page
from .quantities import QUANTITIES, values
from .replay import Replay
from .residuals import concurrency
from .truth import Truth

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = "truth.html"

Row = Mapping[str, Any]


def write_truth(truth: Truth, folder: Path, command: str) -> list[Path]:
    """Writes everything about a comparison.

    Args:
        truth: the comparison.
        folder: where to; made if need be.
        command: the command line that makes it again.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    images = draw_figures(truth)
    files = {f"{name}.csv": csv_bytes(rows) for name, rows in tables(truth).items()}
    files["requests.parquet"] = parquet_bytes(request_table(truth))
    files |= {f"{kind.name}.png": images[kind.name] for kind in FIGURES}
    files[PAGE] = page(truth, images, command).encode()
    for name, content in files.items():
        write_atomically(folder / name, content)
    if truth.noise is None:
        (folder / "noise.csv").unlink(missing_ok=True)  # Of an earlier comparison.
    return [folder / name for name in files]


def tables(truth: Truth) -> dict[str, list[Row]]:
    """The rows of every CSV file, by name. Times in seconds."""
    overhead: list[Row] = [
        {"part": part.name, "requests": part.requests, "alone": part.alone, "known": part.known}
        | {f"{name}_s": getattr(part, name) / 1e12 for name in ("value", "low", "high")}
        for part in truth.overhead.parts
    ]
    found: dict[str, list[Row]] = {
        "errors": [
            {"policy": line.label, "seed": "" if line.seed is None else line.seed, "time": line.quantity.name}
            | {"overhead_added": line.overhead}
            | line.errors.row()
            for line in truth.errors
        ],
        "goodput": [
            {"policy": row.pop("label"), "with_overhead": row.pop("with_")} | row for row in map(asdict, truth.goodputs)
        ],
        "ranking": [asdict(pair) | {"order": pair.verdict, "tau": truth.ranking.tau} for pair in truth.ranking.pairs],
        "overhead": overhead,
        "residuals": [
            {"time": each.quantity.name, "driver": each.driver, "from": bin_[0], "to": bin_[1], "requests": bin_[2]}
            | {f"{name}_s": bin_[k] for k, name in ((3, "p25"), (4, "p50"), (5, "p75"))}
            | {"explained": each.explained}
            for each in truth.residuals
            for bin_ in each.bins
        ],
    }
    if truth.noise is not None:
        found["noise"] = [
            {"against": words, "time": name} | each.row()
            for words, some in (("simulator", truth.noise.model), ("repeat", truth.noise.repeats))
            for name, each in some.items()
        ]
    return found


def request_table(truth: Truth) -> pa.Table:
    """One row per request of every run: measured and simulated times (s), and what may drive their difference."""
    import pyarrow as pa

    tables = [_requests(run) for run in truth.runs]
    whole = pa.concat_tables(tables)
    versions = {"results_schema_version": str(RESULTS_SCHEMA), "overhead_ps": str(truth.overhead.total)}
    return whole.replace_schema_metadata(versions)


def _requests(run: Replay) -> pa.Table:
    import pyarrow as pa

    records, trace = run.live.stored.records, run.live.stored.trace
    n, output = len(records), trace.output.astype(np.int64)
    columns: dict[str, Any] = {
        "policy": [run.live.label] * n,
        "seed": np.full(n, run.live.seed, np.int64),
        "request": np.arange(n),
        "compared": run.compared,
        "prompt": trace.prompt,
        "output": trace.output,
        "replayed_output": run.live.output,
        "prefill": records["prefill"],
        "decode": records["decode"],
        "arrival_s": records["arrival"] / 1e12,
        "on_prefill": concurrency(run, "prefill"),
        "on_decode": concurrency(run, "decode"),
    }
    for quantity in QUANTITIES:
        for words, source in (("measured", records), ("simulated", run.simulated)):
            times = values(source, output, quantity)
            columns[f"{words}_{quantity.name}_s"] = pa.array(times, mask=~np.isfinite(times))
    return pa.table(columns)
