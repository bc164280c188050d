"""`disaggroute experiment`: experiments that ship with the package."""

from __future__ import annotations

import typer

from .paper import commands as paper_commands

app = typer.Typer(no_args_is_help=True, help="Experiments: the study reproduced, and on what its findings depend.")


def register(main: typer.Typer) -> None:
    """Adds the group of commands to an app."""
    paper_commands.register(app)
    main.add_typer(app, name="experiment")
