"""An explanation, written into a folder: tables, figures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import __version__
from ...envs.records import SCHEMA_VERSION
from ..csv_file import csv_bytes
from ..description import seeds_in_words
from ..report.page import Section, encoded, render
from ..report.tables import Table
from ..runs import RESULTS_SCHEMA, write_atomically
from ..source_hash import source_hash
from .explanation import Explanation, Portrait
from .figures import ExplanationFigure, draw_figures, figures_of
from .tables import (
    agreement_table,
    assignment_table,
    effect_table,
    feature_table,
    files,
    input_table,
    tail_table,
    term_table,
)

PAGE = "explanation.html"


def write_explanation(found: Explanation, folder: Path, command: str, *, figures: bool = True) -> list[Path]:
    """Writes everything about an explanation.

    Args:
        found: the explanation.
        folder: where to; made if need be.
        command: the command line that makes it again.
        figures: whether to draw figures and to write the page.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    content = {f"{name}.csv": csv_bytes(rows) for name, rows in files(found).items() if rows}
    if figures:
        kinds = figures_of(found)
        images = draw_figures(kinds)
        content |= {f"{name}.png": image for name, image in images.items()}
        content[PAGE] = page(found, kinds, images, command).encode()
    for left in (*folder.glob("*.csv"), *folder.glob("*.png"), folder / PAGE):
        if left.name not in content:  # Of an earlier explanation.
            left.unlink(missing_ok=True)
    for name, data in content.items():
        write_atomically(folder / name, data)
    return [folder / name for name in content]


def page(found: Explanation, kinds: Sequence[ExplanationFigure], images: Mapping[str, bytes], command: str) -> str:
    """The page as HTML; the same explanation gives the same text."""
    tables: dict[str, tuple[Table, ...]] = {
        "effects": (effect_table(found), tail_table(found)),
        "inputs": tuple(input_table(found, pool) for pool in found.pools),
        "features": tuple(feature_table(found.policy, pool) for pool in found.pools),
        "terms": tuple(term_table(found.policy, pool) for pool in found.pools),
        "agreement": (agreement_table(found),),
    }
    for pool in found.pools:
        tables[f"assignment-{pool}"] = tuple(assignment_table(found, each, pool) for each in found.portraits)
    told = found.description
    return render(
        policies={portrait.label: portrait.card for portrait in found.portraits},
        versions={
            "disaggroute": __version__,
            "code": source_hash(),
            "results schema": str(RESULTS_SCHEMA),
            "records schema": str(SCHEMA_VERSION),
        },
        title=f"What does {found.policy.label} do?",
        facts={
            "Explained": found.policy.label,
            "Against": found.against.label,
            "Scenario": f"{told.workload} on {told.cluster}",
            "Rate": f"{told.rate:.4g} requests per second",
            "Window": f"{told.duration_s:g} s measured after {told.warmup_s:g} s",
            "Seeds": "one trace" if told.single else f"{len(found.seeds)}: {seeds_in_words(found.seeds)}",
            "Predictor": told.predictor,
        },
        command=command,
        sections=[
            Section(kind.name, kind.title, kind, encoded(images, kind.name), tables.get(kind.name, ()))
            for kind in kinds
        ],
        styles=found.styles,
        remarks=remarks(found),
    )


def remarks(found: Explanation) -> list[str]:
    """What a reader must know."""
    said = [
        f"Both policies ran on the same traces. Intervals: {found.interval}. What depends on what is about what was "
        "asked of the policy, not about what would have become of the requests."
    ]
    for portrait in found.portraits:
        said += _left_out(portrait)
    return said


def _left_out(portrait: Portrait) -> list[str]:
    said = []
    if portrait.inputs is None:
        said.append(
            f"{portrait.label} could not be asked about other inputs: it cannot be copied, failed on them, or decides "
            "otherwise when asked again."
        )
    if portrait.costs is None:
        said.append(f"{portrait.label} offers no costs of features, so none are taken apart.")
    else:
        unlike = {pool: share for pool, share in portrait.costs.agreement.items() if share < 1}
        said += [
            f"The least cost of {portrait.label} is its choice in {100 * share:.1f} % of the {pool} decisions only."
            for pool, share in unlike.items()
        ]
    return said
