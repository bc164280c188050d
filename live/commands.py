"""`disaggroute live`: the real cluster, and engines that stand in for it."""

from __future__ import annotations

import typer

from .emulator.commands import emulate_engine

app = typer.Typer(help="Serve requests on engines, real or emulated.", no_args_is_help=True)

app.command("engine")(emulate_engine)


@app.callback()
def live() -> None:
    """Serve requests on engines, real or emulated."""
