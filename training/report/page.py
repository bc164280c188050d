"""The page: everything about an evaluation in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..description import seeds_in_words
from ..policy_style import Style
from ..table import number, what_counts
from .burst import MOST_POLICIES
from .delays import target_words
from .figures import FIGURES
from .material import Material
from .tables import (
    Table,
    balance_table,
    delay_tables,
    goodput_table,
    group_table,
    miss_table,
    scale_table,
    tail_table,
)

TEMPLATE = Path(__file__).with_name("page.html")


class Captioned(Protocol):
    """A figure as the page needs it: a title, and one sentence that says how to read it."""

    @property
    def title(self) -> str:
        """On the page."""

    @property
    def reading(self) -> str:
        """How to read it."""


@dataclass(frozen=True)
class Section:
    """A part of the page: a figure, if there is one, and the tables that belong to it."""

    name: str
    title: str
    kind: Captioned | None
    image: str
    tables: tuple[Table, ...]


def page(material: Material, images: dict[str, bytes]) -> str:
    """The page of a report as HTML; the same material gives the same text.

    Args:
        material: the results.
        images: PNG of each figure, by name.
    """
    results = material.results
    return render(
        policies=results.policies,
        versions=results.versions,
        title=f"{results.description.workload} on {results.description.where}",
        facts=facts(material),
        command=results.command,
        sections=sections(material, images),
        styles=material.styles,
        remarks=page_remarks(material),
    )


def render(
    *,
    policies: Mapping[str, Mapping[str, Any]],
    versions: Mapping[str, str],
    title: str,
    facts: Mapping[str, str],
    command: str,
    sections: Sequence[Section],
    styles: Mapping[str, Style],
    remarks: Sequence[str],
) -> str:
    """A page about results as HTML.

    Args:
        policies: name, parameters and hash of each policy, by label.
        versions: of the program, its code and the files.
        title: above all.
        facts: what was run, as names and values.
        command: the command line that makes it again; empty where there is none.
        sections: the parts.
        styles: how each policy looks.
        remarks: what a reader must know.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(TEMPLATE.name).render(
        title=title,
        facts=facts,
        command=command,
        sections=sections,
        colours={label: style.colour for label, style in styles.items()},
        policies={label: (json.dumps(card["params"]), card["hash"]) for label, card in policies.items()},
        remarks=remarks,
        versions=versions,
    )


def facts(material: Material) -> dict[str, str]:
    """What was run, as names and values."""
    results, told = material.results, material.results.description
    pools = ", ".join(f"{size} {role} ({' and '.join(told.profiles[role])})" for role, size in told.pools.items())
    found = {
        "Scenario": told.workload + (" (one recorded trace)" if told.single else ""),
        "Rate": f"{told.rate:.4g} requests per second",
        "Window": f"{told.duration_s:g} s measured after {told.warmup_s:g} s",
        "Seeds": "one trace" if told.single else f"{len(results.seeds)}: {seeds_in_words(results.seeds)}",
        "Cluster": f"{told.where}: {pools}; {told.gpus} GPUs",
        "Predictor": told.predictor,
        "Targets": told.targets + target_words(material.records),
        "Ceiling": f"{number(material.comparison.ceiling, 4)}, the share that meets both targets alone",
    }
    if told.routers > 1:
        found["Routers"] = told.routers_in_words
    if told.observability != "router":
        found["Observability"] = told.observability
    if told.constants_scale != 1:
        found["Router's constants"] = f"all times multiplied by {told.constants_scale:g}"
    return found


def sections(material: Material, images: dict[str, bytes]) -> list[Section]:
    """The parts of the page: one per figure with its tables."""
    tables = {
        "goodput": (goodput_table(material), miss_table(material)),
        "slo-scale": (scale_table(material),),
        "groups": (group_table(material),),
        "delays": (*delay_tables(material), tail_table(material)),
        "balance": (balance_table(material),),
    }
    return [
        Section(
            name=kind.name,
            title=kind.title,
            kind=kind,
            image=encoded(images, kind.name),
            tables=tables.get(kind.name, ()),
        )
        for kind in FIGURES
        if kind.name in images or kind.name in tables
    ]


def encoded(images: Mapping[str, bytes], name: str) -> str:
    """A PNG as text; empty without it."""
    return base64.b64encode(images[name]).decode() if name in images else ""


def page_remarks(material: Material) -> list[str]:
    """What a reader must know of the numbers, and what could not be shown."""
    results = material.results
    said = [what_counts(material.comparison)]
    if not results.command:
        said.append("It was evaluated from Python, with what the command line does not take.")
    if results.missing:
        said.append(f"{results.missing}.")
    if len(material.records) > MOST_POLICIES:
        said.append(
            f"The cluster under a burst is shown for {MOST_POLICIES} policies: the baseline, the best and the worst of "
            "the first seed, and the first of the others."
        )
    without = [label for label in material.labels if label not in material.records]
    if without:
        whom = "no policy" if len(without) == len(material.labels) else f"not of {', '.join(without)}"
        missing = ", ".join(kind.title.lower() for kind in FIGURES if kind.needs_records)
        said.append(
            f"Records of the first seed were kept of {whom}: left out of the figures made from records ({missing})."
        )
    return said
