"""`disaggroute experiment`: the experiments that ship."""

from __future__ import annotations

import typer

from .suite import commands as suite_commands

app = typer.Typer(no_args_is_help=True, help="Experiments that ship: many runs, one result.")


@app.callback()
def experiment() -> None:
    """Experiments that ship: many runs, one result."""


suite_commands.register(app)
