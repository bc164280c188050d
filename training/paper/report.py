"""An experiment, written into its folder: tables, figures and one page."""

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
from .experiment import Experiment
from .figures import READING, draw
from .tables import (
    command_table,
    comparison_table,
    count_words,
    finding_rows,
    number_rows,
    number_table,
    residual_of,
    residual_table,
    verdict_marks,
    verdict_table,
    winner_table,
)

FINDINGS, NUMBERS, PAGE = "findings.csv", "numbers.csv", "report.html"


@dataclass(frozen=True)
class Caption:
    """Title of a figure, and how to read it."""

    title: str
    reading: str


def write(experiment: Experiment, folder: Path, *, figures: bool = True) -> list[Path]:
    """Writes everything about an experiment into its folder.

    Args:
        experiment: what was found.
        folder: of the experiment.
        figures: whether to draw figures and to write the page.

    Returns:
        The files, the page last.

    Raises:
        OSError: a file cannot be written.
    """
    files = {FINDINGS: csv_bytes(finding_rows(experiment)), NUMBERS: csv_bytes(number_rows(experiment))}
    if figures:
        images = {figure.name: draw(experiment, figure) for figure in experiment.plan.figures}
        files |= {f"{name}.png": content for name, content in images.items()}
        files[PAGE] = page(experiment, images).encode()
    return write_files(folder, files, (*(f"{figure.name}.png" for figure in experiment.plan.config.figures), PAGE))


def page(experiment: Experiment, images: dict[str, bytes]) -> str:
    """The page as HTML; the same experiment gives the same text.

    Args:
        experiment: what was found.
        images: PNG of each figure, by name.
    """
    config, measured = experiment.plan.config, experiment.measured
    sections = [Section("verdicts", "Verdicts", None, "", (verdict_table(experiment),))]
    for figure in experiment.plan.figures:
        verdicts = " ".join(f"{verdict_marks(found)}." for found in experiment.found_in(figure))
        caption = Caption(figure.title, " ".join(filter(None, (verdicts, READING, figure.reading))))
        tables = (number_table(experiment, figure), comparison_table(experiment, figure))
        sections.append(Section(figure.name, figure.title, caption, encoded(images, figure.name), tables))
    if experiment.residuals():
        several = (winner_table(experiment),) if experiment.winners() else ()
        sections.append(
            Section("simulators", "Against the study's simulator", None, "", (*several, residual_table(experiment)))
        )
    sections.append(Section("commands", "Commands", None, "", (command_table(experiment),)))
    texts = dict.fromkeys(text for part in measured.parts for text in part.policies.values())
    cards = {text: policy_card(text) for text in texts}
    return render(
        policies=cards,
        versions={
            "disaggroute": __version__,
            "code": source_hash(),
            "results schema": str(RESULTS_SCHEMA),
            "records schema": str(SCHEMA_VERSION),
        },
        title=config.title or f"Experiment: {config.name}",
        facts={
            "Verdicts": count_words(experiment),
            "Conditions": str(len(measured.parts)),
            "Seeds": f"{len(experiment.plan.seeds)}: {seeds_in_words(experiment.plan.seeds)}",
            "Runs": f"{experiment.plan.runs:,}",
        }
        | ({"Notes": config.notes} if config.notes else {}),
        command=experiment.command,
        sections=sections,
        styles=policy_styles(cards),
        remarks=simulator_remarks(experiment),
    )


def simulator_remarks(experiment: Experiment) -> list[str]:
    """Where this simulator does better than the study's own one, and where not."""
    winners, theirs = experiment.winners(), experiment.plan.config.published_residual
    if not winners or theirs is None:
        return []
    same = [each.condition for each in winners if each.same]
    other = [each.condition for each in winners if not each.same]
    text = (
        "The study's own simulator reproduced its measured winner on no workload. Here it is the same in "
        f"{len(same)} of {len(winners)} conditions ({', '.join(same) or 'none'})"
    )
    text += f", and another one in {', '.join(other)}." if other else "."
    ours = residual_of(experiment)
    better = "smaller than" if ours < theirs else "not smaller than"
    text += f" The mean absolute residual of goodput is {ours:.3f}, {better} that simulator's {theirs:.3f}."
    return [text]
