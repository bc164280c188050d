"""`disaggroute live install-engines`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command("install-engines")(install_engines)


def install_engines(
    cpu: Annotated[bool, typer.Option("--cpu", help="Engines that run on the CPU.")] = False,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Engines that run on NVIDIA GPUs. The project's own tests do not run these.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(help="Folder to make. Default: in $DISAGGROUTE_ENGINES, .engines of a source tree, or the cache."),
    ] = None,
) -> None:
    """Install vLLM and NIXL into an environment of their own.

    Does nothing where it has been done; an installation that was interrupted, or has other versions, is made anew.
    Packages come from where pip is configured to look; uv is used if it is installed, else pip, which takes longer.
    """
    from .installation import engines_folder, install

    if cpu == cuda:
        raise ValueError("give one of --cpu and --cuda")
    kind = "cpu" if cpu else "cuda"
    folder = into or engines_folder(kind)
    python = install(kind, folder, lambda line: typer.echo(line, err=True))
    typer.echo(f"The engines are installed; their Python is {python}")
