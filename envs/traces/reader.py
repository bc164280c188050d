"""Reads a trace file of any known format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..trace import SLO_CLASSES
from . import native
from .content import Content
from .file import Oddities, TraceFile
from .formats import OWN, Format, detect, named
from .prefixes import gather
from .rows import Rows, from_csv, from_jsonl


def read(path: str | Path, format: str | None = None, *, sort: bool = False) -> TraceFile:
    """Reads a trace file, plain or gzip-compressed.

    Accepted and counted: rows without prompt or output tokens (BurstGPT's failures; dropped), repeated
    timestamps, blank lines, a byte-order mark, CRLF line ends.

    Args:
        path: the file.
        format: one of `formats.NAMES`; found out from the first line unless given.
        sort: sort rows that are out of order, instead of refusing them.

    Raises:
        ValueError: names the file, the line and the column of what is wrong.
    """
    mark, crlf = False, 0
    if native.is_parquet(path):
        if format not in (None, OWN.name):
            raise ValueError(f"{path}: is a Parquet file; of the formats only {OWN.name} is kept in one")
        kind, names = OWN, native.parquet_columns(path)
        rows = native.parquet_rows(path, _own_required(names))
    else:
        content = Content.read(path)
        mark, crlf = content.byte_order_mark, content.crlf
        kind = detect(content) if format is None else named(format)
        if kind.name == "azure" and OWN.arrival in content.text.split("\n", 1)[0]:
            kind = replace(OWN, name="azure")  # a conversion of the Azure traces that has our columns
        rows = _rows(content, kind)
    return _file(rows, kind, mark, crlf, sort)


def _rows(content: Content, kind: Format) -> Rows:
    if kind.arrival == OWN.arrival:
        first = content.text.split("\n", 1)[0].split(",")
        return from_csv(content, _own_required(first), native.OPTIONAL)
    optional = (kind.label,) if kind.label else ()
    if kind.json:
        return from_jsonl(content, kind.required, optional, kind.prefix)
    return from_csv(content, kind.required, optional)


def _own_required(names: list[str]) -> tuple[str, ...]:
    exact = "arrival_ps" in [name.strip() for name in names]
    return ("arrival_ps" if exact else OWN.arrival, OWN.prompt, OWN.output)


def _file(rows: Rows, kind: Format, mark: bool, crlf: int, sort: bool) -> TraceFile:
    if "arrival_ps" in rows.values:
        arrival_name, arrival = "arrival_ps", rows.column("arrival_ps").picoseconds()
    else:
        arrival_name, column = kind.arrival, rows.column(kind.arrival)
        if kind.clock == "date":
            arrival = column.timestamps()
        else:
            unit_ns = {"s": 1_000_000_000, "ms": 1_000_000}[kind.clock]
            arrival = column.times(unit_ns, from_first=kind.arrival != OWN.arrival)
    prompt, output = rows.column(kind.prompt).tokens(), rows.column(kind.output).tokens()
    late = np.flatnonzero(np.diff(arrival) < 0)
    if len(late) and not sort:
        raise ValueError(
            f"{rows.path}, line {rows.lines[int(late[0]) + 1]}: {arrival_name} is earlier than in the row "
            "above; rows must be sorted by arrival (sort=True, or --sort, sorts them)"
        )
    order = np.argsort(arrival, kind="stable")
    order = order[(prompt[order] > 0) & (output[order] > 0)]
    if not len(order):
        raise ValueError(f"{rows.path}: has no row with prompt and output tokens; it must hold at least one")

    families, family = ("trace",), np.zeros(len(order), np.int8)
    label = "family" if kind.arrival == OWN.arrival else kind.label
    if label in rows.values:
        words = rows.column(str(label)).labels()
        families = tuple(dict.fromkeys(words[k] for k in order))
        if len(families) > 127:
            raise ValueError(f"{rows.path}: {label} has {len(families)} values; at most 127 are allowed")
        places = {word: place for place, word in enumerate(families)}
        family = np.array([places[words[k]] for k in order], np.int8)
    offsets, ids = _prefixes(rows, order)
    return TraceFile(
        path=rows.path,
        format=kind.name,
        arrival=arrival[order],
        prompt=prompt[order].astype(np.int32),
        output=output[order].astype(np.int32),
        family=family,
        families=families,
        slo=rows.column("slo").choice(SLO_CLASSES)[order] if "slo" in rows.values else None,
        ttft_target=_target(rows, "ttft_target_ps", order),
        tpot_target=_target(rows, "tpot_target_ps", order),
        prefix_offsets=offsets,
        prefix_ids=ids,
        prefix_tokens=kind.prefix_tokens,
        quantised=kind.quantised,
        oddities=Oddities(
            rows=len(prompt),
            failed=len(prompt) - len(order),
            unsorted=len(late),
            duplicates=int((np.diff(arrival[order]) == 0).sum()),
            blank=rows.blank,
            byte_order_mark=mark,
            crlf=crlf,
        ),
    )


def _target(rows: Rows, name: str, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    return rows.column(name).picoseconds()[order] if name in rows.values else None


def _prefixes(
    rows: Rows, order: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
    if rows.prefix_offsets is None or rows.prefix_ids is None:
        return None, None
    return gather(rows.prefix_offsets, rows.prefix_ids, order)
