"""`disaggroute experiment`: experiments that ship with the package."""

from __future__ import annotations

import typer

from .paper import commands as paper_commands
from .suite import commands as suite_commands

app = typer.Typer(
    no_args_is_help=True,
    help="Experiments: the study reproduced, on what its findings depend, and a suite with one score per policy.",
)


def register(main: typer.Typer) -> None:
    """Adds the group of commands to an app."""
    paper_commands.register(app)
    suite_commands.register(app)
    main.add_typer(app, name="experiment")
