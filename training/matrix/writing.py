"""A matrix, written into its folder: table, heat map and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...envs.records import SCHEMA_VERSION
from ..csv_file import csv_bytes
from ..policy_style import policy_styles
from ..report.page import Section, encoded, render
from ..runs import RESULTS_SCHEMA, write_files
from ..source_hash import source_hash
from .cells import Matrix
from .picture import matrix_png
from .tables import (
    beyond_table,
    condition_table,
    csv_rows,
    intervals,
    points_table,
    policy_table,
    slowdown_table,
    ttft_table,
    worst_table,
)

TABLE, PICTURE, PAGE = "matrix.csv", "matrix.png", "matrix.html"


@dataclass(frozen=True)
class _HeatMap:
    """How to read it."""

    title: str = "Where does which policy win?"
    reading: str = (
        "A row is a condition, a column a policy: points of goodput against the reference on the same traces, purple "
        "above it and orange below; a dot marks a difference whose interval excludes zero."
    )


def write_matrix(matrix: Matrix, folder: Path, *, figures: bool = True) -> list[Path]:
    """Writes everything about a matrix into its folder.

    Args:
        matrix: the numbers.
        folder: of the matrix.
        figures: whether to draw the heat map and to write the page.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    files = {TABLE: csv_bytes(csv_rows(matrix))}
    if figures and len(matrix.labels) > 1:
        files[PICTURE] = matrix_png(matrix)
    if figures:
        files[PAGE] = page(matrix, {name: content for name, content in files.items() if name == PICTURE}).encode()
    return write_files(folder, files, (PICTURE, PAGE))


def page(matrix: Matrix, images: Mapping[str, bytes]) -> str:
    """The page as HTML; the same matrix gives the same text."""
    kind = _HeatMap()
    several = len(matrix.labels) > 1
    tables = (points_table(matrix), *((worst_table(matrix),) if several else ()))
    sections = [
        Section("matrix", kind.title, kind, encoded(images, PICTURE), tables),
        Section("tails", "Tails", None, "", (ttft_table(matrix), slowdown_table(matrix), beyond_table(matrix))),
        Section("conditions", "Conditions", None, "", (condition_table(matrix), policy_table(matrix))),
    ]
    cards = {
        cell.text: row.evaluation.runs[cell.text][0].policy
        for row in matrix.rows
        for cell in (row.cells[label] for label in matrix.labels)
    }
    config = matrix.plan.config
    return render(
        policies=cards,
        versions={
            "disaggroute": __version__,
            "code": source_hash(),
            "results schema": str(RESULTS_SCHEMA),
            "records schema": str(SCHEMA_VERSION),
        },
        title=f"Matrix: {config.name}",
        facts={
            "Conditions": str(len(matrix.rows)),
            "Policies": ", ".join(matrix.labels),
            "Reference": matrix.reference,
            "Runs": f"{matrix.plan.runs:,}",
        }
        | ({"Notes": config.notes} if config.notes else {}),
        command=matrix.command,
        sections=sections,
        styles=policy_styles(cards),
        remarks=[intervals(matrix), *(f"{sentence}." for sentence in matrix.plan.skipped)],
    )
