"""`disaggroute live calibrate`: measure engines and write their profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    cluster: Annotated[str, typer.Argument(help="Name of a live cluster, or path of its YAML file.")],
    out: Annotated[Path | None, typer.Option(help="Folder for all files. Default: calibrations/CLUSTER.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the profile. Default: from the cluster's.")] = None,
    gpu: Annotated[str, typer.Option(help="The hardware, in words, for the profile.")] = "not stated",
    quick: Annotated[bool, typer.Option("--quick", help="Few and short measurements: under a minute on GPUs.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="How long the measurements may take, beyond the first two rounds.")
    ] = None,
    gates: Annotated[bool, typer.Option("--gates/--no-gates", help="Hold the engines to the gates first.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Throw away what --out holds, and measure anew.")] = False,
) -> None:
    """Measure prefill, decode and transfer times of engines and write the profile that they give.

    Nobody else may use the engines meanwhile. An interrupted calibration goes on when it is started again.
    """
    import asyncio
    from dataclasses import replace

    from rich.console import Console

    from ...envs.progress import run_progress
    from ..file_name import file_name
    from ..running import running
    from .calibrate import measure_cluster, open_folder
    from .fits import fits_of
    from .plan import FULL, QUICK
    from .profile_document import Calibrated, profile_name
    from .result import Result

    live = running(cluster)
    folder = out or Path("calibrations") / file_name(live.name)
    named = profile_name(name, live.name)
    finished = folder / f"{named}.yaml"
    if finished.exists() and not force:
        raise ValueError(f"out is {folder}, which holds the finished profile {finished.name}; name another, or --force")
    if minutes is not None and not 0 < minutes <= 1_440:
        raise ValueError(f"minutes is {minutes:g}; it must be above 0 and at most 1,440")
    effort = QUICK if quick else FULL
    effort = replace(effort, seconds=60 * minutes) if minutes is not None else effort
    file = open_folder(folder, live, effort, force=force)
    if file.rows:
        _say(f"going on from {len(file.rows)} measurements in {file.path}")
    with run_progress("calibrating", "s of the engines") as on_progress:
        measured = asyncio.run(
            measure_cluster(live, file, effort, gates=gates, tell=_say, on_progress=on_progress)
        )
    fits = fits_of(file.rows, measured.sizes)
    result = Result.of(Calibrated(named, gpu, live, measured.engines, len(file.rows)), fits)
    path = result.write(folder)
    console = Console(markup=False, emoji=False)
    for table in result.tables():
        console.print(table)
    for remark in result.remarks():
        console.print(remark, highlight=False)
    typer.echo(path)


def _say(text: str) -> None:
    typer.echo(text, err=True)
