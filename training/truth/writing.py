"""A comparison with the simulator, written into a folder: tables, requests, figures and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..csv_file import csv_bytes
from ..runs import RESULTS_SCHEMA, fingerprint, parquet_bytes, write_atomically
from .figures import FIGURES, draw_figures
from .page import page
from .quantities import QUANTITIES, values
from .replay import Replay
from .residuals import concurrency
from .truth import Truth

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = "truth.html"

NOTE = "comparison.json"
"""File that says what a comparison is made of."""

Row = Mapping[str, Any]


def folder_of(truth: Truth) -> Path:
    """Where a comparison goes unless told: `truth` in its run, with a key where it is of more than the run."""
    name = "truth"
    if truth.given:
        words = [name, truth.given.get("profile", "").partition(" ")[0], Path(truth.given.get("repeat", "")).name]
        words = [re.sub(r"[^\w.-]+", "-", word)[:60] for word in words if word]
        name = "-".join([*words, fingerprint(truth.given)[:6]])
    return truth.results.folder.path / name


def check_folder(truth: Truth, folder: Path) -> None:
    """Refuses a folder that holds a comparison of something else.

    Raises:
        ValueError: it does; says what differs.
    """
    try:
        known = dict(json.loads((folder / NOTE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return
    mine = _note(truth)
    differ = [name for name in sorted({*known, *mine}) if known.get(name) != mine.get(name)]
    if differ:
        what = f"which holds a comparison of something else (other {', '.join(differ)})"
        raise ValueError(f"out is {folder}, {what}; name another folder")


def _note(truth: Truth) -> dict[str, Any]:
    return {"schema_version": RESULTS_SCHEMA, "run": truth.results.folder.key} | truth.given


def write_truth(truth: Truth, folder: Path, command: str) -> list[Path]:
    """Writes everything about a comparison.

    Args:
        truth: the comparison.
        folder: where to; made if need be.
        command: the command line that makes it again.

    Returns:
        The files, the page last.

    Raises:
        ValueError: as `check_folder`.
        OSError: a file cannot be written.
    """
    check_folder(truth, folder)
    images = draw_figures(truth)
    files = {NOTE: (json.dumps(_note(truth), indent=1) + "\n").encode()}
    files |= {f"{name}.csv": csv_bytes(rows) for name, rows in tables(truth).items()}
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
