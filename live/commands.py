"""`disaggroute live`: the router in front of real or emulated engines."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="The router in front of real or emulated engines.")
