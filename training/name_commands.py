"""`disaggroute list` and `disaggroute explain`: what the other commands can be told."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

LISTS = ("policies", "workloads", "profiles", "configs", "predictors")


def register(app: typer.Typer) -> None:
    """Adds the commands of this module to an app."""
    app.command("list")(list_names)
    app.command()(explain)


def list_names(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS), help="What to list.")],
) -> None:
    """List the names that other commands take."""
    from ..envs import catalog

    if what not in LISTS:
        raise ValueError(catalog.unknown("list", what, LISTS))
    if what == "configs":
        for kind in catalog.KINDS:
            with suppress(FileNotFoundError):  # A kind of which nothing ships.
                for name in catalog.names(kind):
                    typer.echo(f"{kind}/{name}")
        return
    for name in _names(what):
        typer.echo(name)


def explain(
    policy: Annotated[str, typer.Argument(help="Policy, with parameters in brackets where wanted.")],
) -> None:
    """Print how a policy decides and what its parameters are."""
    from ..policies import registry

    chosen = registry.parse(policy)
    typer.echo(registry.describe(chosen.name))
    typer.echo(f"\n{chosen} has the hash {chosen.hash}.")


def _names(what: str) -> tuple[str, ...]:
    from ..envs import predictors, profiles, workloads
    from ..policies import registry

    modules: dict[str, Any] = {"policies": registry, "workloads": workloads}
    modules |= {"profiles": profiles, "predictors": predictors}
    return tuple(modules[what].names())
