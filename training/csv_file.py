"""Rows as CSV: the same rows give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from .runs import RESULTS_SCHEMA


def csv_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as CSV with the schema version in front; numbers in full."""
    text = io.StringIO()
    kept = [{"schema_version": RESULTS_SCHEMA, **row} for row in rows]
    columns = list(dict.fromkeys(name for row in kept for name in row))
    writer = csv.DictWriter(text, columns or ["schema_version"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    return text.getvalue().encode()
