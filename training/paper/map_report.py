"""A map, written into its folder: table, heat map and page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...envs.records import SCHEMA_VERSION
from ..csv_file import csv_bytes
from ..description import seeds_in_words
from ..evaluation import policy_card
from ..policy_style import policy_styles
from ..report.page import Section, encoded, render
from ..runs import RESULTS_SCHEMA, write_files
from ..source_hash import source_hash
from .condition_map import ConditionMap
from .map_figure import map_png
from .map_tables import axis_table, command_tables, count_table, map_rows

TABLE, PICTURE, PAGE = "conditions.csv", "conditions.png", "conditions.html"


@dataclass(frozen=True)
class _Caption:
    """How to read it."""

    title: str = "Where does each finding hold?"
    reading: str = (
        "A row is a finding, a column a point of an axis, the default first: purple where the effect is what the claim "
        "says and orange where it is not, in margins of its rule; the number is the effect of the weakest comparison, "
        "in points of goodput unless the rule has another unit."
    )


def write_map(found: ConditionMap, folder: Path, *, figures: bool = True) -> list[Path]:
    """Writes everything about a map into its folder.

    Args:
        found: the map.
        folder: of the map.
        figures: whether to draw the heat map and to write the page.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    files = {TABLE: csv_bytes(map_rows(found))}
    if figures:
        files[PICTURE] = map_png(found)
        files[PAGE] = page(found, {PICTURE: files[PICTURE]}).encode()
    return write_files(folder, files, (PICTURE, PAGE))


def page(found: ConditionMap, images: dict[str, bytes]) -> str:
    """The page as HTML; the same map gives the same text.

    Args:
        found: the map.
        images: PNG of the heat map, by its file name.
    """
    caption, config = _Caption(), found.plan.config
    runs, tuning = command_tables(found)
    sections = [Section("map", caption.title, caption, encoded(images, PICTURE), (count_table(found),))]
    sections += [Section(axis.name, axis.title, None, "", (axis_table(found, axis),)) for axis in found.plan.axes]
    sections.append(Section("commands", "Commands", None, "", (runs, tuning)))
    parts = [part for measured in found.measured.values() for part in measured.parts]
    cards = {text: policy_card(text) for text in dict.fromkeys(t for part in parts for t in part.labels)}
    missing = dict.fromkeys(cell.missing for cell in found.cells.values() if cell.missing)
    return render(
        policies=cards,
        versions={
            "disaggroute": __version__,
            "code": source_hash(),
            "results schema": str(RESULTS_SCHEMA),
            "records schema": str(SCHEMA_VERSION),
        },
        title=config.title or f"Map: {config.name}",
        facts={
            "Findings": f"{len(found.plan.findings)}, of {found.plan.experiment.name}",
            "Points": f"{len(found.plan.points)}, the default among them",
            "Seeds": f"{len(found.plan.seeds)}: {seeds_in_words(found.plan.seeds)}",
            "Runs": f"{found.plan.runs:,}",
        }
        | ({"Notes": config.notes} if config.notes else {}),
        command=found.command,
        sections=sections,
        styles=policy_styles(cards),
        remarks=[f"Not looked at everywhere: {sentence}." for sentence in missing],
    )
