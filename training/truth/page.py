"""The page of a comparison with the simulator: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from ..description import seeds_in_words
from ..report.page import Section, encoded, render
from .figures import FIGURES
from .tables import (
    distribution_table,
    error_table,
    goodput_table,
    noise_table,
    ranking_table,
    repeat_table,
    residual_table,
    seed_table,
)
from .truth import Truth


def page(truth: Truth, images: Mapping[str, bytes], command: str) -> str:
    """The page as HTML; the same comparison gives the same text.

    Args:
        truth: the comparison.
        images: PNG of each figure, by name.
        command: the command line that makes it again.
    """
    told = truth.results.description
    return render(
        policies=truth.results.policies,
        versions=truth.results.versions,
        title=f"Does the simulator tell the truth? {told.workload} on {told.cluster}",
        facts=facts(truth),
        command=command,
        sections=sections(truth, images),
        styles=truth.styles,
        remarks=remarks(truth),
    )


def facts(truth: Truth) -> dict[str, str]:
    """What was compared, as names and values."""
    results, told = truth.results, truth.results.description
    found = {
        "Runs": f"{results.folder.path.name}: {len(truth.runs)} runs of {len(truth.labels)} policies, "
        f"{seeds_in_words(results.seeds)}",
        "Scenario": f"{told.workload}, {told.rate:.4g} requests per second, {told.duration_s:g} s measured after "
        f"{told.warmup_s:g} s",
        "Cluster": f"{told.cluster}: " + ", ".join(f"{count} {role}" for role, count in told.pools.items()),
        "Profile": truth.profile,
        "Requests": f"{sum(run.requests for run in truth.runs):,} compared",
        "Overhead": truth.overhead.text(),
    }
    if truth.repeat is not None:
        found["Repeat"] = truth.repeat.name
    return found


def sections(truth: Truth, images: Mapping[str, bytes]) -> list[Section]:
    """The parts of the page: one per figure with its tables."""
    noise = truth.noise
    tables = {
        "errors": (
            error_table(truth),
            *((noise_table(truth, noise),) if noise else ()),
            *((seed_table(truth),) if len(truth.results.seeds) > 1 else ()),
        ),
        "distributions": (distribution_table(truth),),
        "residuals": (residual_table(truth),),
        "ranking": (ranking_table(truth), goodput_table(truth), *((repeat_table(noise),) if noise else ())),
    }
    return [
        Section(kind.name, kind.title, kind, encoded(images, kind.name), tables.get(kind.name, ())) for kind in FIGURES
    ]


def remarks(truth: Truth) -> list[str]:
    """What a reader must know."""
    said = [
        "Each run was replayed in the simulator: the same requests, at the instants at which they were sent to their "
        "engines, to the same instances. The simulator is told nothing else of what was measured.",
        "All times are the engines' seconds. TTFT and E2E count from when the client sent the request.",
    ]
    late = [float(q) for q in _lateness(truth)]
    said.append(
        f"The client sent its requests {late[0] / 1e9:.2f} ms late (median; P99 {late[1] / 1e9:.2f} ms); the replay "
        "uses the true instants."
    )
    if truth.not_compared:
        said.append(f"Not compared: {'. '.join(truth.not_compared)}.")
    if truth.results.missing:
        said.append(f"{truth.results.missing}.")
    return said


def _lateness(truth: Truth) -> tuple[float, float]:
    import numpy as np

    late = np.concatenate([run.live.lateness for run in truth.runs])
    median, far = np.quantile(late, (0.5, 0.99))
    return float(median), float(far)
