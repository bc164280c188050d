"""`disaggroute live`: the router in front of real or emulated engines."""

from __future__ import annotations

import typer

from .engines import commands as engine_commands

app = typer.Typer(no_args_is_help=True, help="The router in front of real or emulated engines.")
engine_commands.register(app)
